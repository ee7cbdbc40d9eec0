"""The list of compute capabilities: text in, sm_XY and compute_XY out, with the traps of the real one."""

def parse_capabilities(text, digits, letters):
    """Translates a list such as "8.6", "sm_80,compute_86" or "7.5,8.6".

    Args:
      text: the list as the user wrote it.
      digits: how many digits a capability may have: [2], or [2, 3].
      letters: the suffixes that are known, such as ["a"].
    Returns:
      a list without duplicates: sm_XY is machine code only, compute_XY machine code and PTX.
    """
    capabilities = text.split(",")
    dotted = [capability for capability in capabilities if len(capability.split(".")) == 2]
    if len(dotted) == len(capabilities):
        # Only the last one gets PTX. The order is the order of texts, so 12.0 comes before 8.6: that is no mistake here.
        numbers = sorted([capability.replace(".", "") for capability in capabilities])
        capabilities = ["sm_" + number for number in numbers[:-1]] + ["compute_" + numbers[-1]]
    else:
        capabilities = ["compute_" + c.replace(".", "") if c in dotted else c for c in capabilities]

    unique = []
    for capability in capabilities:
        if not _is_valid(capability, digits, letters):
            fail("Invalid compute capability: %s" % capability)
        if capability not in unique:
            unique.append(capability)
    return unique

def _is_valid(capability, digits, letters):
    for prefix in ["sm_", "compute_"]:
        if capability.startswith(prefix):
            number = capability[len(prefix):]
            if number[-1:] in letters:
                number = number[:-1]
            return number.isdigit() and len(number) in digits
    return False
