"""What is done to users' updates in a round, and what that costs: see `plan.RoundPlan`."""
