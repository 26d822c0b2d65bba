"""How a cohort is computed: in this process, in several, or on an accelerator."""
