plan=$(tfdock matrix "$@" --missing --format github -- "$TFDOCK_MATRIX")
# Always a list: as many matrices as it takes for GitHub's limit of a matrix.
case $plan in
  '['*) ;;
  *) plan="[$plan]" ;;
esac
# GitHub drops outputs of more than a megabyte, which it counts as UTF-16.
length=$(printf '%s' "$plan" | wc -m)
if [ "$length" -gt 500000 ]; then
  echo "::error::the plan has $length characters, and GitHub takes 500000: ask for fewer wheels, or in several matrices"
  exit 1
fi
printf 'plan=%s\n' "$plan" >>"$GITHUB_OUTPUT"
