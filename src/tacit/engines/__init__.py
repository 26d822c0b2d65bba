"""How a cohort is computed: in this process, or in several."""
