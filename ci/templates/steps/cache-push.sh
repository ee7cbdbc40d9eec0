tfdock cache push --domain all "$TFDOCK_CACHE:$TFDOCK_CACHE_TAG"
