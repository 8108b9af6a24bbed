"""What a scheduler embeds: `PrefixCache` over the pool, one manager per attention type."""
