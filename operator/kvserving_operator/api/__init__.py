"""The custom resources: models, validation, conditions, reasons, and what they generate."""
