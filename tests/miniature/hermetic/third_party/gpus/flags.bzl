"""Build settings that a command line can set: --@local_config_cuda//:enable_cuda and its like."""

FlagInfo = provider(fields = ["value"])

def _flag_impl(ctx):
    value = ctx.build_setting_value
    allowed = getattr(ctx.attr, "values", [])
    if allowed and value not in allowed:
        fail("%s is %s, but it can only be one of %s" % (ctx.label, value, ", ".join(allowed)))
    return FlagInfo(value = value)

bool_flag = rule(
    implementation = _flag_impl,
    build_setting = config.bool(flag = True),
)

string_flag = rule(
    implementation = _flag_impl,
    build_setting = config.string(flag = True),
    attrs = {"values": attr.string_list()},
)
