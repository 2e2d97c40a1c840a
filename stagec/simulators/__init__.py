"""What simulators need beside the traces, from the plan's device and links; and what their logs say."""
