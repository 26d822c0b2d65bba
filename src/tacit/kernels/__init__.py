"""Hand-written training steps in torch and C++, and how they are built and chosen."""
