"""Pages contain their texts escaped, and no section without content."""

from nvdla.util import html


def test_a_page_escapes_all_texts():
    page = html.page("<b>", html.section("a & b", html.table(("<i>",), [("</td>",)]), "1 < 2"), html.items(["<li>"]))
    assert "<b>" not in page and "<i>" not in page and "</td></td>" not in page and "<li><li>" not in page
    assert "&lt;b&gt;" in page and "a &amp; b" in page and "1 &lt; 2" in page


def test_nothing_is_shown_without_content():
    assert html.table(("head",), []) == html.items([]) == html.section("heading", "") == ""


def test_a_table_may_have_no_heading_row():
    assert html.table((), [("name", 3)]).count("<tr>") == 1
    assert html.table(("a", "b"), [("name", 3)]).count("<tr>") == 2
