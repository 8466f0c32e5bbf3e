from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshstack_dagster.stackexchange import html_to_text


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("", ""),
        (" \n ", ""),
        ("just text", "just text"),
        ("<p>one</p>\n\n<p>two</p>\n", "one\n\ntwo"),
        (
            "<p>a &lt;div&gt; &amp;amp; &quot;q&quot; &#39;&nbsp;&eacute;&#x1F600;</p>",
            'a <div> &amp; "q" \' é\U0001f600',
        ),
        ("<p>two  \n words <b>bold</b><i> it </i> end</p>", "two words bold it end"),
        ("<p>see <a href='https://x.y'>the <em>docs</em></a>.</p>", "see the docs."),
        ("<p>use <code>a  &lt; b</code> or <code>x`y</code></p>", "use `a < b` or ``x`y``"),
        ("<p>press <kbd>Ctrl</kbd>+<kbd>C</kbd></p>", "press Ctrl+C"),
        ("<p>line<br>break<br/>\nthird</p>", "line\nbreak\nthird"),
        ("<pre><code>def f():\n    return 1 &lt; 2\n</code></pre>", "```\ndef f():\n    return 1 < 2\n```"),
        ('<pre class="lang-py prettyprint-override"><code>x</code></pre>', "```py\nx\n```"),
        ('<pre><code class="language-c++">x</code></pre>', "```c++\nx\n```"),
        ('<pre class="lang-none"><code>x</code></pre>', "```\nx\n```"),
        ("<pre><code>a\n\n\nb  c\t\n</code></pre>", "```\na\n\n\nb  c\t\n```"),
        ("<pre><code>```\n</code></pre>", "````\n```\n````"),
        ("<p>before</p><pre>x</pre><p>after</p>", "before\n\n```\nx\n```\n\nafter"),
        ("<ul>\n<li>one</li>\n<li>two</li>\n</ul>\n<p>end</p>", "- one\n- two\n\nend"),
        ("<ol start='3'><li>c</li><li>d</li></ol>", "3. c\n4. d"),
        (
            "<ul><li><p>a</p><pre>x\ny</pre></li><li>b<ol><li>c</li></ol></li></ul>",
            "- a\n\n  ```\n  x\n  y\n  ```\n- b\n  1. c",
        ),
        ("<blockquote><p>q</p><p>r</p></blockquote><p>s</p>", "> q\n>\n> r\n\ns"),
        ("<h2>Head</h2><p>t</p><hr><p>u</p>", "## Head\n\nt\n\n---\n\nu"),
        ('<p><img src="a.png" alt="enter image description here"> <img alt="a plot"></p>', "a plot"),
        ("<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table>", "a | b\n1 | 2"),
        ("<p>a</p><script>x()</script><style>y</style><!-- no -->", "a"),
        ("<p>unclosed <b>tags", "unclosed tags"),
        ("a<div>b</div>c", "a\n\nb\n\nc"),
    ],
)
def test_html_to_text(html, text):
    assert html_to_text(html) == text


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_any_text_gives_text(html):
    assert isinstance(html_to_text(html), str)


WORDS = st.text(st.sampled_from("abcdefgh"), min_size=1, max_size=6)
TAGS = st.sampled_from(
    ["p", "div", "ul", "li", "ol", "blockquote", "pre", "code", "b", "a", "td", "tr", "table", "h1", "span", "em"]
)
TREES = st.recursive(
    WORDS,
    lambda inner: st.builds(lambda tag, parts: f"<{tag}>{' '.join(parts)}</{tag}>", TAGS, st.lists(inner, max_size=4)),
    max_leaves=25,
)


@settings(max_examples=200, deadline=None)
@given(TREES)
def test_no_word_is_lost_or_comes_out_of_order(html):
    words = re.findall("[a-h]+", re.sub(r"</?[a-z0-9]+>", " ", html))
    # Letters only: two inline elements may stand against each other, and a table's stray text moves before it.
    given = "".join(re.findall("[a-h]+", html_to_text(html)))
    assert sorted(given) == sorted("".join(words))
    if not re.search("<t[rd]|<table", html):
        assert given == "".join(words)


def test_deep_nesting_neither_overflows_nor_takes_long():
    started = time.monotonic()
    assert "deep" in html_to_text("<blockquote>" * 300 + "deep" + "</blockquote>" * 300)
    assert "deep" in html_to_text("<b>" * 20_000 + "deep")
    assert "deep" in html_to_text("<ul><li>" * 400 + "deep")
    assert time.monotonic() - started < 5


def test_real_posts_keep_every_code_block(shared):
    from lxml import etree

    for path in (shared / "data" / "stack_exchange").glob("*/Posts.xml"):
        for element in etree.parse(str(path)).getroot().iter("row"):
            body = element.get("Body")
            text = html_to_text(body)
            assert text.count("```") >= 2 * body.count("<pre")
            words = re.sub(r"<[^>]*>", " ", body)
            assert len(re.findall(r"\w+", text)) >= 0.9 * len(re.findall(r"\w+", re.sub(r"&\w+;", " ", words)))
