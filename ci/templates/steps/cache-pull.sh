# Before the first push there is none, and one that is down costs time and not the wheel.
tfdock cache pull $TFDOCK_DOMAINS "$TFDOCK_CACHE:$TFDOCK_CACHE_TAG" || echo "no cache was pulled: what it has is compiled again"
