"""What is taken out of a report, wherever and however it is written, and what stays."""

from __future__ import annotations

import base64
import json
import random
import re
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdock.diagnose import redaction
from tfdock.diagnose.redaction import LocalNames, Redactor

from ..backtracking import most_ways
from ..steps import steps

# Secrets of nobody, put together so that no scanner takes them for somebody's.
CANARY = "c4nary/S3cret+42"
GITHUB = "gh" + "p_" + "c4nary" * 6
BASIC = base64.b64encode(b"annacanary:hunter2canary").decode()
PEM = "\n".join(base64.b64encode(random.Random(number).randbytes(48)).decode() for number in range(4))
BEGIN, END = "-----BEGIN RSA " + "PRIVATE KEY-----", "-----END RSA " + "PRIVATE KEY-----"


def redacted(*texts: str, known: LocalNames | None = None) -> str:
    redactor = Redactor(known or LocalNames())
    for text in texts:
        redactor.learn(text)
    return "\n".join(map(redactor.text, texts))


def knowing(secret: str, known: LocalNames | None = None) -> Redactor:
    redactor = Redactor(known or LocalNames())
    redactor.learn_document({"PASSWORD": secret})
    return redactor


# --- what shows itself --------------------------------------------------------------------------------------------

SHOWN = {
    "variable": (f"export MY_TOKEN={CANARY}", CANARY),
    "variable, quoted": (f'DB_PASSWORD="{CANARY} and more"', "and more"),
    "variable in camel case": (f"accessToken: {CANARY}", CANARY),
    "variable that is a word": ("PGPASSWORD=swordfishcanary", "swordfish"),
    "variable whose quote is never closed": ('export DB_PASSWORD="hunter2canary', "hunter2"),
    "variable as bash declares it": ("declare -x DB_PASSWORD=$'hunter2\\ncanary'", "canary"),
    "yaml": (f"  password: '{CANARY}'", CANARY),
    "yaml, in a block": (f"  api_key: |\n    {CANARY}", CANARY),
    "json": (json.dumps({"client_secret": CANARY}), CANARY),
    "json in json": (json.dumps(json.dumps({"client_secret": CANARY})), CANARY),
    "json with a quote": (json.dumps({"client_secret": 'hunter2"canary'}), "canary"),
    "json with a quote, in json": (json.dumps(json.dumps({"client_secret": 'hunter2"canary'})), "canary"),
    "option": (f"docker run --password {CANARY} x", CANARY),
    "option with a sign": (f"tool --auth-token={CANARY}", CANARY),
    "variable of a Dockerfile": (f"#7 [2/9] ENV DB_PASSWORD {CANARY}", CANARY),
    "variable of a Dockerfile with a short name": ("#7 [2/9] ENV GIT_PAT hunter2canary", "hunter2"),
    "variable with a short name": (f"ARTIFACTORY_PASS={CANARY}", CANARY),
    "variable with a short name, quoted": (f"MYSQL_PWD='{CANARY}'", CANARY),
    "key of a variable": (f"declare -x DEPLOY_KEY={CANARY}", CANARY),
    "sshpass": (f"sshpass -p {CANARY} ssh x", CANARY),
    "mysql": ("mysql -u root -phunter7canary x", "hunter7"),
    "mysql, quoted": ("/usr/bin/mysqldump -p'hunter7 canary' x", "canary"),
    "redis": ("redis-cli -h x -a hunter13canary get y", "hunter13"),
    "password in words": ("The MySQL password is SuperCanary99.", "SuperCanary99"),
    "signed address of Google": ("GET /x?X-Goog-Signature=0123canary&X-Goog-Date=1", "0123canary"),
    "bot of Telegram": ("https://api.telegram.org/bot" + "123456789" + ":AA" + "c4nary-" * 4 + "canar/x", "c4nary"),
    "twine": (f"twine upload -u __token__ -p {CANARY} dist/*", CANARY),
    "login through a pipe": (f'echo "{CANARY}" | docker login -u x --password-stdin ghcr.io', CANARY),
    "header of Artifactory": (f"curl -H 'X-JFrog-Art-Api: {CANARY}' https://x", CANARY),
    "webhook of Slack": ("https://hooks.slack.com/" + "services/T00000000/B0000/c4narycanary", "c4narycanary"),
    "webhook of Discord": ("https://discord.com/api/webhooks/1234567/c4narycanary", "c4narycanary"),
    "SendGrid": ("S" + "G.c4narycanary1234567890.c4narycanary1234567890", "c4narycanary"),
    "Bazel's folder": ("/x/.cache/bazel/_bazel_annacanary/0123/execroot", "annacanary"),
    "user in a variable": ("declare -x LOGNAME=annacanary", "annacanary"),
    "host in a variable": ("HOSTNAME=canaryhost.example.org", "canaryhost"),
    "author": ("Author: Anna Canary <x@example.org>", "Anna Canary"),
    "docker login": ("docker login -u x -p hunter2canary ghcr.io", "hunter2canary"),
    "curl": ("curl -sS -u anna:hunter2canary https://example.org", "hunter2canary"),
    "curl, short": ("curl -sSLu anna:hunter2canary https://example.org", "hunter2canary"),
    "curl through a proxy": ("curl --proxy-user anna:hunter2canary https://example.org", "hunter2canary"),
    "login option by itself": ("+ -u anna:hunter2canary", "hunter2canary"),
    "login option with a sign": ("wget-like -u=anna:hunter2canary https://x", "hunter2canary"),
    "long login option": ("http --user anna:swordfish-canary GET x", "swordfish"),
    "long login option with a sign": ("tool --proxy-user=anna:hunter2canary", "hunter2canary"),
    "login option in quotes": ("tool -u 'anna:hunter2 canary'", "canary"),
    "login option in a list": ("run(['tool', '-u', 'anna:hunter2canary'])", "hunter2canary"),
    "login option in a JSON list": (json.dumps(["tool", "-u", "anna:hunter2canary"]), "hunter2canary"),
    "npm's token after a space": ("npm_token CANARY-NPM", "CANARY-NPM"),
    "token after a space, in capitals": ("npm_token CANARY", "CANARY"),
    "pass with a sign": ("export db_pass=swordfish", "swordfish"),
    "pass of a chart": ("helm install --set auth.pass=swordfish x", "swordfish"),
    "password of a connection": ("Server=h;Pwd=swordfish;", "swordfish"),
    "api key in words": ("API key: c4narycanary0", "c4nary"),
    "license key": ("license_key: swordfish-canary", "swordfish"),
    "pass phrase of openssl": ("openssl rsa -in x -passin pass:swordfish", "swordfish"),
    "smbclient": ("smbclient //h/x -U anna%swordfish", "swordfish"),
    "ldapsearch": ("ldapsearch -x -D cn=anna -w swordfish", "swordfish"),
    "a name and a word in a line": ("x\nnpm_token swordfish\ny", "swordfish"),
    "a name and a word in a line, in capitals": ("  AWS_SECRET_ACCESS_KEY swordfishlong", "swordfish"),
    "token after a tab": ("auth-token\tc4narycanary", "c4nary"),
    "short name after a space": ("token 9f3ac4narycanary0", "c4nary"),
    "password after a space": ("using password CANARY-PW", "CANARY-PW"),
    "password after a space, in capitals": ("password CANARY", "CANARY"),
    "password after a space, in quotes": ("password 'Correct horse canary'", "canary"),
    "pass phrase": ("Enter pass phrase: CANARY", "CANARY"),
    "pass phrase in small letters": ("pass phrase: swordfish", "swordfish"),
    "passphrase after a space": ("passphrase c4nary-and-more", "c4nary"),
    "pass phrase of a key": ("Enter pass phrase for /root/key.pem: swordfish", "swordfish"),
    "password of a user": ("[sudo] password for anna: swordfish", "swordfish"),
    "password of an address": ("Password for 'https://anna@example.org': swordfish", "swordfish"),
    "netrc in lines": ("machine example.org\n  login x\n  password hunter2canary\n", "hunter2canary"),
    "netrc": ("machine example.org login x password hunter2canary", "hunter2canary"),
    "login in an address": ("https://anna:hunter2canary@example.org/x", "hunter2canary"),
    "login with marks": ("http_proxy=http://anna:hunter2/?#canary@example.org:3128", "canary"),
    "login with an at": ("https://anna:hunter2@canary@example.org/x", "canary@"),
    "token in an address": ("git clone https://hunter2canary@example.org/x", "hunter2canary"),
    "signed address": ("https://s3.example.org/x?X-Amz-Signature=0123canary&y=1", "0123canary"),
    "shared access signature": ("https://x.example.org/y?sv=1&sig=0123canary", "0123canary"),
    "bearer": ("Authorization: Bearer hunter2canary", "hunter2canary"),
    "bearer of curl": ("> authorization: Bearer hunter2canary", "hunter2canary"),
    "basic": (f"Authorization: Basic {BASIC}", BASIC),
    "basic by itself": (f"sent Basic {BASIC}", BASIC),
    "header of a registry": ("X-Registry-Auth: hunter2canary", "hunter2canary"),
    "bazel's header": ("--remote_header=x-anything=hunter2canary", "hunter2canary"),
    "cookie": ("Cookie: theme=dark; sid=hunter2canary", "hunter2canary"),
    "cookie that is set": ("Set-Cookie: sid=hunter2canary; Path=/; HttpOnly", "hunter2canary"),
    "docker's configuration": (json.dumps({"auths": {"ghcr.io": {"auth": BASIC}}}, indent=1), BASIC),
    "docker's helper": ('{"ServerURL": "x", "Username": "annacanary", "Secret": "hunter2canary"}', "canary"),
    "bazel's helper": ('{"headers": {"x-anything": ["hunter2canary"]}}', "hunter2canary"),
    "private key": (f"{BEGIN}\n{PEM}\n{END}", PEM.split("\n")[1]),
    "private key in a line": (json.dumps(f"{BEGIN}\n{PEM}\n{END}"), PEM.split("\n")[1]),
    "private key in a line, without its end": (json.dumps(f"{BEGIN}\n{PEM}")[:200], PEM.split("\n")[1]),
    "private key without its end": (f"{BEGIN}\n{PEM}", PEM.split("\n")[2]),
    "private key without its beginning": (f"{PEM}\n{END}", PEM.split("\n")[2]),
    "private key without either": (f"x\n{PEM}\ny", PEM.split("\n")[2]),
    "GitHub": (f"cloning with {GITHUB}", GITHUB),
    "GitLab": ("gl" + "pat-c4narycanary1234", "c4narycanary"),
    "AWS": ("AK" + "IA" + "CANARYCANARY1234", "CANARYCANARY"),
    "Vault": ("hv" + "s.c4narycanary1234567890", "c4narycanary"),
    "Vault, batch": ("hv" + "b.c4narycanary1234567890", "c4narycanary"),
    "DigitalOcean": ("do" + "p_v1_" + "ca1a" * 16, "ca1aca1a"),
    "Shopify": ("shp" + "at_" + "ca1a" * 8, "ca1aca1a"),
    "Databricks": ("da" + "pi" + "ca1a" * 8, "ca1aca1a"),
    "Atlassian": ("AT" + "ATT3xFfGF0c4narycanary1234567890", "c4narycanary"),
    "GitLab's runner": ("gl" + "rtr-c4narycanary1234", "c4narycanary"),
    "private key in base64": (
        base64.b64encode(f"{BEGIN}\n{PEM}".encode()).decode(),
        base64.b64encode(BEGIN.encode()).decode()[:12],
    ),
    "Docker Hub": ("dckr" + "_pat_c4narycanary", "c4narycanary"),
    "web token": ("ey" + "Jhbcanary.eyJzdcanary.sigcanary", "canary"),
    "e-mail": ("Author: Anna <anna.canary@example.org>", "canary"),
    "e-mail in an address": ("mailto=anna.canary%40example.org&x", "canary"),
    "home": ("/home/annacanary/tensorflow", "annacanary"),
    "home on a Mac": ("/Users/annacanary/tensorflow", "annacanary"),
    "home on Windows": ("C:\\Users\\annacanary\\tensorflow", "annacanary"),
    "network card": ("ether 02:42:ac:11:ca:fe", "ca:fe"),
    "GPU": ("GPU-0f0f0f0f-1111-2222-3333-0123456789ab", "0123456789ab"),
}


@pytest.mark.parametrize(("text", "secret"), SHOWN.values(), ids=SHOWN)
def test_what_shows_itself_goes(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in redacted(text)
    assert secret not in redacted(f"12:00:01 #7 0.1 before {text}\nafter")


STAYS = [
    "PWD=/home",
    "clang -mllvm -debug-pass=Structure",
    "[12,345 / 23,456] 8 actions; Compiling tensorflow/core/kernels/matmul_op.cc; 12s linux-sandbox",
    "ERROR: /tf/tensorflow/core/BUILD:3412:1: C++ compilation of rule '//tensorflow:x' failed (Exit 4)",
    "nvcc fatal   : Unsupported gpu architecture 'compute_120'",
    f"sha256:{'0a' * 32}  {'0b' * 20}",
    '"fingerprint": "57f0ec7ebc0d2cfccdbc056204f3f1c01c8aac909f5dc26edd4a58ea45585641"',
    "external/com_google_protobuf/src/google/protobuf/io/tokenizer.cc:12: error: expected token: ';'",
    "tokenizer: fast, max_tokens=512, tokens: 3, secretary: x, compass=7",
    "GITHUB_TOKEN_FILE=/run/token SSH_AUTH_SOCK=/run/agent TFDOCK_REMOTE_CREDENTIAL_HELPER=/usr/bin/helper",
    "password=${PASSWORD} token=$TOKEN secret: ${{ secrets.X }} password: *** token: null",
    "git@github.com:tensorflow/tensorflow.git at git@github.com",
    "image ghcr.io/me/wheels@sha256:0123 rules_cc@0.0.9 @local_config_cuda//cuda:cuda.h numpy==1.26.4",
    "https://github.com/tensorflow/tensorflow/archive/v2.18.0.tar.gz?raw=true&key",
    "docker://localhost:5000/x@sha256:0123 http://[::1]/x https://registry.example:443/@scope/x http://x.org/?a=b",
    "undefined reference to `cublasLtCreate@libcublasLt.so.11' and `std::foo@libstdc++.so.6', memcpy@GLIBC_2.14",
    "copied to /home/runner/work, /root/.cache, /tf/output/base and 93.184.216.34:443",
    "Basic operations; bearer of news; basic tensorflow/core/ops",
    "std::string token_type_name = 1; --notoken; author: authorized",
    "2026-11-21 10:46:00.123 I tensorflow/core/platform/cpu_feature_guard.cc:210] oneDNN: AVX2 FMA",
    "if (token == nullptr) return;",
    "bazel_user_root /root/.cache/bazel/_bazel_root/1 USER=root HOSTNAME=localhost OLDPWD=/tf PWD=/tf",
    "LLVM_PASS_NAME=inline CACHE_KEY=linux-3 mysql -port echo done | docker build -",
    "gcc -I/usr/include/mysql -o mysql -pthread -pipe; redis-cli -p 6379; the password is required, or is not set",
    "2026:AA is no token; 12345678:AAB neither",
    "password required; Password Required. token expired, passphrase missing, invalid secret given, Password: ",
    "password for key not found; enter the pass phrase again; a token (or password) is needed; token of 12 letters",
    "docker run -u 1000:1000 x; docker run --user 1000:100 x; --user root:root; date -u +%H:%M:%S; sort -u a b",
    "pip install --user numpy; ld -u std::foo; git push -u origin main; tool -u https://example.org/x",
    'missing binary operator before token "("; Unexpected token < in JSON at position 0; expected token before CUDA',
    "next_token expected; password authentication failed; secret sharing; password-based; token 12; password file.",
    "",
]


@pytest.mark.parametrize("text", STAYS, ids=lambda text: text[:40])
def test_what_is_nobodys_secret_stays(text: str) -> None:
    assert redacted(text) == text


def test_names_of_secrets_decide_in_documents() -> None:
    document = {
        "environment": {"API_TOKEN": "swordfish", "TF_CUDA_VERSION": "12", "TOKEN_FILE": "/x", "A_TOKEN": "$HOME"},
        "of variables": {"GH_PAT": "hunter3", "DB_PASS": "hunter4", "DEPLOY_KEY": "hunter5", "CACHE_KEY": "x"},
        "command": ["x", "--password", "hunter2", "--jobs", "8", "--remote_header", "Authorization=Bearer q1w2e3r4"],
        "logins": ["x", "-u", "anna:hunter6", "--user", "1000:1000", "-u", "https://x", "--proxy-user", "me:hunter7"],
        "auth": ["one-secret", "two-secret"],
        "deep": [{"text": "again swordfish and hunter3"}],
        "number": 5,
        "nothing": None,
    }
    redactor = Redactor(LocalNames())
    redactor.learn_document(document)
    assert redactor.document(document) == {
        "environment": {"API_TOKEN": "<secret>", "TF_CUDA_VERSION": "12", "TOKEN_FILE": "/x", "A_TOKEN": "$HOME"},
        "of variables": {"GH_PAT": "<secret>", "DB_PASS": "<secret>", "DEPLOY_KEY": "<secret>", "CACHE_KEY": "x"},
        "command": ["x", "--password", "<secret>", "--jobs", "8", "--remote_header", "Authorization=<secret>"],
        "logins": ["x", "-u", "<login>", "--user", "1000:1000", "-u", "https://x", "--proxy-user", "<login>"],
        "auth": ["<secret>", "<secret>"],
        "deep": [{"text": "again <secret> and <secret>"}],
        "number": 5,
        "nothing": None,
    }


# --- what is known of this machine ----------------------------------------------------------------------------------

KNOWN = LocalNames(
    users=frozenset({"annacanary", "Anna Canary", "root", "li"}),
    hosts=frozenset({"canaryhost", "localhost", "cc"}),
    addresses=frozenset({"10.9.8.7", "fd00::ca:1"}),
    places={"/srv/annacanary": "<home>", "/srv/annacanary/cache": "<cache>"},
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("by annacanary, /tmp/bazel_annacanary/x", "by <user>, /tmp/bazel_<user>/x"),
        ("ANNACANARY and Anna Canary", "<user> and <user>"),
        ("on CanaryHost.example", "on <host>.example"),
        ("inet 10.9.8.7/24 and fd00::ca:1", "inet <address>/24 and <address>"),
        ("/srv/annacanary/cache/disk /srv/annacanary/x", "<cache>/disk <home>/x"),
        # Parts of words, names of nobody, and names that are too short to be told from words.
        ("annacanaryx canaryhosts 110.9.8.71", "annacanaryx canaryhosts 110.9.8.71"),
        (
            "root at localhost, li, relu.cu.cc rules_cc@0.0.9 --cc",
            "root at localhost, li, relu.cu.cc rules_cc@0.0.9 --cc",
        ),
        # Of two letters they count where they are said to be names.
        ("on cc as root, li@cc, http://cc:80", "on <host> as root, <user>@<host>, http://<host>:80"),
        ("12:00:01 cc docker[7]: by li", "12:00:01 <host> docker[7]: by <user>"),
    ],
)
def test_what_is_known_of_this_machine_goes(text: str, shown: str) -> None:
    assert redacted(text, known=KNOWN) == shown


# --- in whatever spelling -------------------------------------------------------------------------------------------


def spellings(secret: str) -> dict[str, str]:
    data = secret.encode()
    return {
        "plain": secret,
        "base64": base64.b64encode(data).decode(),
        "base64, second place": base64.b64encode(b"x" + data + b"y").decode(),
        "base64, third place": base64.b64encode(b"xy" + data + b"zz").decode(),
        "base64 for addresses": base64.urlsafe_b64encode(b"user:" + data).decode(),
        "base64 in lines": base64.encodebytes(b"z" * 50 + data * 2).decode(),
        "url": urllib.parse.quote(secret, safe=""),
        "url, small letters": re.sub("%..", lambda one: one[0].lower(), urllib.parse.quote(secret, safe="")),
        "url, twice": urllib.parse.quote(urllib.parse.quote(secret, safe=""), safe=""),
        "url, all of it": "".join(f"%{byte:02X}" for byte in data),
        "form": urllib.parse.quote_plus(secret),
        "hexadecimal": data.hex(),
        "json": json.dumps(secret),
        "json in json": json.dumps(json.dumps(secret)),
    }


def holds(text: str, secret: str) -> bool:
    """Whether a text says it to somebody who decodes what he finds."""
    tight = "".join(text.split())
    found = [text, tight, urllib.parse.unquote(text), urllib.parse.unquote(urllib.parse.unquote_plus(text))]
    for run in re.findall(r"[A-Za-z0-9+/]{4,}", tight.translate(str.maketrans("-_", "+/"))):
        pieces = (run[start:][: len(run[start:]) // 4 * 4] for start in range(4))
        rests = (run[start:] + "=" * (-len(run[start:]) % 4) for start in range(4) if len(run[start:]) % 4 != 1)
        found += [base64.b64decode(piece).decode("utf-8", "replace") for piece in (*pieces, *rests)]
    return any(secret in one for one in found) or secret.encode().hex() in tight


@pytest.mark.parametrize(
    "secret", [CANARY, "pässwort c4nary", 'quo"te\\c4nary', "hunter2canary", "c4n%c6ary", "c4n%2541ary"]
)
def test_a_secret_goes_in_every_spelling(secret: str) -> None:
    redactor = knowing(secret)
    for name, text in spellings(secret).items():
        assert holds(text, secret) or name.startswith("json"), name
        said = redactor.text(text)
        assert not holds(said, secret), (name, said)
        assert "<secret>" in said, name


def test_what_one_text_shows_goes_out_of_the_others_as_well() -> None:
    encoded = base64.b64encode(f"x{CANARY}y".encode()).decode()
    said = redacted(
        f"before {CANARY} {encoded}", f"MY_TOKEN={CANARY}", f"after {urllib.parse.quote(CANARY, safe='')}"
    )
    assert said == "before <secret> <secret>\nMY_TOKEN=<secret>\nafter <secret>"


def test_a_login_goes_with_what_is_in_it() -> None:
    said = redacted(f"Authorization: Basic {BASIC}", "hunter2canary of annacanary")
    assert said == "Authorization: <secret>\n<login> of <login>"


def test_it_is_counted_by_what_it_was() -> None:
    redactor = knowing("hunter2", KNOWN)
    redactor.text("annacanary annacanary hunter2 a.b@example.org 10.9.8.7")
    assert redactor.counts == {"user": 2, "secret": 1, "email": 1, "address": 1}


@given(
    st.text(
        alphabet=st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_categories=["Cs", "Cc"]), min_size=8
    )
)
def test_whatever_a_secret_is_made_of_it_goes(secret: str) -> None:
    secret = f"c4{secret}"  # marks alone are no secret
    redactor = knowing(secret)
    for text in (secret, base64.b64encode(secret.encode()).decode(), urllib.parse.quote(secret, safe="")):
        assert secret not in redactor.text(f"x {text} y")
        assert redactor.text(f"x {text} y").startswith("x <secret>")


@pytest.mark.parametrize("rule", redaction._RULES, ids=lambda rule: rule.expression.pattern[:40])
def test_a_longer_text_gives_no_rule_more_ways_to_search_it(rule: redaction._Rule) -> None:
    assert most_ways(rule.expression, 10**5) == most_ways(rule.expression, 10**6)


def test_the_expressions_for_keys_and_logins_have_one_way_alone() -> None:
    for searched in (redaction._BEGIN, redaction._END, redaction._BASIC):
        assert most_ways(searched, 10**6) == 1
    for matched in (redaction._FULL, redaction._REST):
        assert most_ways(f"^(?:{matched.pattern})", 10**6) == 1


@pytest.mark.parametrize(
    "evil",
    ["a", "token=", "--", "a@", "x://", "AAAA", "%25", f"{BEGIN}\n", f"{END}\n", f"{PEM}\n", f"{BEGIN}\n{PEM}\n",
     "a1B2c3D4e5F6g7H8\n", "eyJ", '"headers": {', "curl ", "a.b-", "password ", "-u ", "-u a", "a_token\t",
     "password for "],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_twice_the_text_takes_twice_the_steps(evil: str) -> None:
    once, twice = evil * 300, evil * 600
    assert steps(lambda: redacted(twice, known=KNOWN)) < 2.1 * steps(lambda: redacted(once, known=KNOWN))


@pytest.mark.slow
def test_secrets_beyond_those_that_are_learnt_cost_no_more() -> None:
    def tokens(count: int) -> str:
        return "\n".join(f"MY_TOKEN={number:05}616263646566abcdef" for number in range(count))

    learnt = redaction._MOST_LEARNT
    once, twice = tokens(learnt), tokens(2 * learnt)
    assert steps(lambda: redacted(twice)) < 2.1 * steps(lambda: redacted(once))
