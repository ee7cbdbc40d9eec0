tfdock cache push "$TFDOCK_CACHE:$TFDOCK_CACHE_TAG"
