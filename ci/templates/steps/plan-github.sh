plan=$(tfdock matrix "$@" --missing --format github -- "$TFDOCK_MATRIX")
# Always a list: as many matrices as it takes for GitHub's limit of a matrix.
case $plan in
  '['*) ;;
  *) plan="[$plan]" ;;
esac
printf 'plan=%s\n' "$plan" >>"$GITHUB_OUTPUT"
