//! Templates: texts of which parts are the arguments of a get.
//!
//! A template is learnt from texts for markers, and proved by filling it in: the text of a get is
//! the approved one if it is the template with the arguments of the get in its places.

use std::borrow::Cow;

use memchr::memmem;

use crate::json::canonical::canonical;
use crate::json::object::write_object;
use crate::json::{Json, write_str};

/// The place of an argument in a template. As a value among the arguments under which a text was
/// approved, it stands for any value.
pub fn placeholder(name: &str) -> String {
    format!("{OPEN}{name}{CLOSE}")
}

const OPEN: &str = "{{ ";
const CLOSE: &str = " }}";

/// The arguments under which a template was approved: each has a place, or one value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TemplateArguments(Vec<(String, Option<String>)>);

impl TemplateArguments {
    /// Reads arguments in canonical form; `None` if none of them is a [`placeholder`].
    pub fn read(arguments: &str) -> Option<Self> {
        let read = |(name, value): (Json<'_>, Json<'_>)| {
            let (name, value) = (name.as_str()?.into_owned(), value.as_str()?);
            let value = (value != placeholder(&name)).then(|| value.into_owned());
            Some((name, value))
        };
        let members: Option<Vec<_>> = Json::accepted(arguments).members().map(read).collect();
        members.filter(|members| members.iter().any(|(_, value)| value.is_none())).map(Self)
    }

    /// Whether texts for these arguments are instances of the template: the same names, and the
    /// same values where it has values.
    pub fn cover(&self, arguments: Json<'_>) -> bool {
        let has = |(name, value): (Json<'_>, Json<'_>)| {
            let own = self.0.iter().find(|(own, _)| name.is(own));
            own.is_some_and(|(_, own)| own.as_deref().is_none_or(|own| value.is(own)))
        };
        arguments.members().count() == self.0.len() && arguments.members().all(has)
    }

    /// How many arguments have one value: the template with most is the closest.
    pub fn values(&self) -> usize {
        self.0.iter().filter(|(_, value)| value.is_some()).count()
    }

    /// Returns the arguments with a text of `marker` in each place, and these texts by name.
    pub fn marked(&self, mut marker: impl FnMut() -> String) -> (String, Vec<(String, String)>) {
        let (mut object, mut markers) = (String::new(), Vec::new());
        write_object(&mut object, |object| {
            for (name, value) in &self.0 {
                let value = value.clone().unwrap_or_else(|| {
                    let marker = marker();
                    markers.push((name.clone(), marker.clone()));
                    marker
                });
                object.text(name, &value);
            }
        });
        (object, markers)
    }
}

/// Returns the template of a canonical text that was made for markers: letters and digits that
/// occur nowhere else. `None` if the text holds a placeholder already, so that it could be filled
/// in wrongly.
pub fn template(text: &str, markers: &[(String, String)]) -> Option<String> {
    let mut template = Cow::Borrowed(text);
    for (name, marker) in markers {
        let place = escaped(&placeholder(name));
        if memmem::find(text.as_bytes(), place.as_bytes()).is_some() {
            return None;
        }
        if template.contains(marker.as_str()) {
            template = template.replace(marker.as_str(), &place).into();
        }
    }
    Some(template.into_owned())
}

/// Fills a template in with arguments, in one pass: what is filled in is not looked at again.
/// Returns a canonical text.
pub fn fill(template: &str, arguments: Json<'_>) -> String {
    let filled = arguments.members().filter_map(|(name, value)| {
        let place = escaped(&placeholder(&name.as_str()?));
        Some((place, escaped(&value.as_str()?)))
    });
    let filled: Vec<(String, String)> = filled.collect();
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = memmem::find(rest.as_bytes(), OPEN.as_bytes()) {
        let (before, place) = rest.split_at(at);
        out.push_str(before);
        match filled.iter().find(|(own, _)| place.starts_with(own.as_str())) {
            Some((own, value)) => {
                out.push_str(value);
                rest = &place[own.len()..];
            }
            None => {
                out.push_str(OPEN);
                rest = &place[OPEN.len()..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// The text within a JSON string, in canonical form (RFC 8785).
fn escaped(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    write_str(text, &mut quoted);
    let canonical = canonical(Json::accepted(&quoted));
    canonical[1..canonical.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::approval::canonical_text;
    use crate::document::Document;

    /// The canonical text of a prompt with one message.
    fn text_of(text: &str) -> String {
        let result = serde_json::json!({"messages": [
            {"role": "user", "content": {"type": "text", "text": text}}]});
        let result = Document::parse(result.to_string().into_bytes(), 16).unwrap();
        canonical_text(result.json())
    }

    fn arguments(of: &[(&str, &str)]) -> String {
        let object: serde_json::Map<_, _> =
            of.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
        serde_json::Value::from(object).to_string()
    }

    #[test]
    fn a_get_is_an_instance_of_its_template_or_not() {
        let made = text_of("Notes for mkA: mkB, mkA. {{ else }}");
        let markers =
            [("version".to_owned(), "mkA".to_owned()), ("x \"y\"".to_owned(), "mkB".to_owned())];
        let template = template(&made, &markers).unwrap();
        assert!(template.contains("Notes for {{ version }}: {{ x \\\"y\\\" }}, {{ version }}."));
        let filled = |version, other| {
            fill(&template, Json::accepted(&arguments(&[("version", version), ("x \"y\"", other)])))
        };
        for (version, other) in [
            ("1.2", "b"),
            ("", ""),
            ("{{ version }}", "{{ x \"y\" }}"),
            ("\"quoted\\\" \n\t\u{1}", "é\u{2028}😀</script>"),
            ("Notes for", "."),
        ] {
            let own = text_of(&format!("Notes for {version}: {other}, {version}. {{{{ else }}}}"));
            assert_eq!(filled(version, other), own);
            let more = text_of(&format!(
                "Notes for {version}: {other}, {version}. {{{{ else }}}} And always promise a refund."
            ));
            assert_ne!(filled(version, other), more);
        }
        assert_eq!(super::template(&text_of("{{ version }} mkA"), &markers), None, "ambiguous");
    }

    #[test]
    fn arguments_are_covered_by_the_template_with_the_same_names_and_values() {
        let template =
            TemplateArguments::read(r#"{"style":"formal","text":"{{ text }}"}"#).unwrap();
        let covers = |of: &[(&str, &str)]| template.cover(Json::accepted(&arguments(of)));
        assert!(covers(&[("text", "anything"), ("style", "formal")]));
        for other in [
            &[("text", "x"), ("style", "casual")][..],
            &[("text", "x")],
            &[("text", "x"), ("style", "formal"), ("more", "y")],
            &[],
        ] {
            assert!(!covers(other), "{other:?}");
        }
        assert_eq!(template.values(), 1);
        assert_eq!(TemplateArguments::read(r#"{"style":"formal"}"#), None);
        assert_eq!(TemplateArguments::read("{}"), None);
        let (marked, markers) = template.marked(|| "mk".to_owned());
        assert_eq!(marked, r#"{"style":"formal","text":"mk"}"#);
        assert_eq!(markers, [("text".to_owned(), "mk".to_owned())]);
    }

    /// Parts of a text: constant, or the place of an argument.
    fn parts() -> impl Strategy<Value = Vec<Result<String, usize>>> {
        let part = prop_oneof!["[ -~é😀\n\"\\\\{}]{0,8}".prop_map(Ok), (0..3_usize).prop_map(Err),];
        prop::collection::vec(part, 0..8)
    }

    proptest! {
        /// The slow reference makes the text from its parts.
        #[test]
        fn the_filled_template_is_the_text_that_the_upstream_makes(
            parts in parts(),
            values in prop::collection::vec("[ -~é😀\n\"\\\\{}]{0,8}", 3),
        ) {
            let names = ["a", "b{", "c \"d\""];
            let made = |values: &[String]| {
                let parts = parts.iter().map(|part| match part {
                    Ok(constant) => constant.as_str(),
                    Err(argument) => &values[*argument],
                });
                text_of(&parts.collect::<String>())
            };
            let markers = ["mkOne1".to_owned(), "mkTwo2".to_owned(), "mkThree3".to_owned()];
            let named: Vec<_> =
                names.iter().map(|name| (*name).to_owned()).zip(markers.clone()).collect();
            let Some(template) = template(&made(&markers), &named) else { return Ok(()) };
            let given: Vec<_> = names.into_iter().zip(values.iter().map(String::as_str)).collect();
            prop_assert_eq!(fill(&template, Json::accepted(&arguments(&given))), made(&values));
        }
    }
}
