tfdock matrix "$@" --missing --format gitlab -- "$TFDOCK_MATRIX" >tfdock-ci/jobs.yml
