//! Labels of cells, for tables that are cards on narrow screens.

/// Adds to each cell of a table the heading of its column, as `data-label`. Tables of the classes
/// `sides` and `plain` are no cards; a cell that has a label keeps it. Texts of others are escaped,
/// so that each `<` begins a tag of a template.
pub(crate) fn with_cell_labels(html: &str) -> String {
    let mut out = String::with_capacity(html.len() + html.len() / 8);
    let mut labels: Vec<String> = Vec::new();
    let mut is_heading = false;
    let mut column = 0;
    for (index, part) in html.split('<').enumerate() {
        out.push_str(if index > 0 { "<" } else { "" });
        let (tag, text) = part.split_once('>').unwrap_or((part, ""));
        let mut rest = part;
        match tag.split(' ').next().unwrap_or_default() {
            "table" => {
                labels.clear();
                is_heading = !["sides", "plain"].iter().any(|class| tag.contains(class));
            }
            "/thead" => is_heading = false,
            "tr" => column = 0,
            "th" if is_heading => labels.push(String::new()),
            "th" => column += 1,
            "td" => {
                let label = labels.get(column).filter(|_| !tag.contains("data-label"));
                if let Some(label) = label {
                    out.push_str(&format!("td data-label=\"{label}\""));
                    rest = &part["td".len()..];
                }
                column += 1;
            }
            _ => {}
        }
        if let Some(label) = labels.last_mut().filter(|_| is_heading) {
            label.push_str(text);
        }
        out.push_str(rest);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cell_has_the_heading_of_its_column() {
        let head = |class: &str| {
            format!(
                "<table{class}><thead><tr><th scope=\"col\">Name</th><th scope=\"col\" class=\"number\">\
                 <a href=\"/x\">Uses &lt;</a></th><th scope=\"col\">Last</th></tr></thead><tbody>"
            )
        };
        let row = "<tr><th scope=\"row\"><b>a</b></th><td class=\"number\">1</td>\
                   <td data-label>now</td></tr></tbody></table><p>x</p>";
        let labelled = "<tr><th scope=\"row\"><b>a</b></th><td data-label=\"Uses &lt;\" class=\"number\">1</td>\
                        <td data-label>now</td></tr></tbody></table><p>x</p>";
        assert_eq!(with_cell_labels(&(head("") + row)), head("") + labelled);
        for class in [" class=\"sides\"", " class=\"plain\""] {
            let plain = head(class) + row;
            assert_eq!(with_cell_labels(&plain), plain);
            let both = plain.clone() + &head("") + row;
            assert_eq!(with_cell_labels(&both), plain + &head("") + labelled);
        }
        for text in ["", "no table", "<td>1</td>", "a < b", "<table><td", "é<"] {
            assert_eq!(with_cell_labels(text), text);
        }
    }
}
