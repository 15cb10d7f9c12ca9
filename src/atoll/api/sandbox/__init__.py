"""The Sandbox API, `/api/public/v1`: bodies and queries, answers, and the routes by resource."""
