"""Planners: functions of forecasts or of an objective, which cannot tell a calibrated model from a bare one."""
