"""Shipped fakes, so that tests of users and of this package need no mocks."""
