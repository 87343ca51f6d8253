"""Types that every layer shares: errors, settings, requests, events. Imports nothing above itself."""
