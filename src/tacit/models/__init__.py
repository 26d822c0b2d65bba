"""Language models and their loss: `registry.build` makes them, `weights` keeps them."""
