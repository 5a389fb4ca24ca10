"""The roles with weights. Nothing here knows a loss or a step."""
