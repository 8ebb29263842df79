"""Group membership: subscriptions, rebalancing and queue locks."""
