"""Ready-made forecasters, and adapters that make one of any model."""
