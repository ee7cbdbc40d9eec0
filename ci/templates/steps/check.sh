tfdock ci check -- "$TFDOCK_MATRIX"
