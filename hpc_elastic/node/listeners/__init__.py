"""Metrics, events, timers and health checks of an agent, where the user asks for them."""
