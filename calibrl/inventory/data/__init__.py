"""Sales that ship with the package."""
