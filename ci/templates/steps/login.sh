# By standard input, into a file that goes with the job: no secret stands on a command line.
if [ -n "$TFDOCK_LOGIN_TOKEN" ]; then
  printf '%s' "$TFDOCK_LOGIN_TOKEN" |
    docker login "$TFDOCK_LOGIN_HOST" --username "$TFDOCK_LOGIN_USER" --password-stdin
else
  echo "nobody is logged in to $TFDOCK_LOGIN_HOST: this job has no token for it"
fi
