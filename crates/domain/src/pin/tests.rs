use proptest::prelude::*;
use proptest::sample::select;

use super::*;

fn digest(name: &str) -> DigestText {
    format!("sha256:{:0>64}", name.bytes().map(|b| format!("{b:02x}")).collect::<String>()).into()
}

fn approval() -> Approval {
    Approval { by: "alice".to_owned(), at: "2026-11-22T00:00:00Z".to_owned(), why: None }
}

fn version(definition: &str, text: Option<&str>) -> Version {
    let texts = text.map(|text| (NO_ARGUMENTS.into(), digest(text)));
    Version { definition: digest(definition), source: None, texts: texts.into_iter().collect() }
}

fn offered(definition: &str, text: Option<&str>) -> Offered {
    let Version { definition, source, texts } = version(definition, text);
    let texts = texts.into_iter().map(|(arguments, text)| (arguments, OfferedText::Known(text)));
    Offered { definition, source, texts: texts.collect() }
}

fn approved(version: Version) -> Pin {
    let mut pin = Pin::default();
    pin.approve(version, approval());
    pin
}

fn decided(pin: Option<&Pin>, offered: &Offered) -> (State, Reason, Serving) {
    let Decision { state, reason, serving } = decide(Mode::Enforce, pin, offered, || true);
    (state, reason, serving)
}

#[test]
fn each_transition_has_its_reason() {
    let mut pin = approved(version("d", Some("t")));
    let same = (State::Approved, Reason::Same, Serving::Offered);
    assert_eq!(
        decided(None, &offered("d", None)),
        (State::Pending, Reason::NeverApproved, Serving::Nothing)
    );
    assert_eq!(decided(Some(&pin), &offered("d", None)), same, "nothing is known of the text");
    assert_eq!(decided(Some(&pin), &offered("d", Some("t"))), same);
    let other_text = offered("d", Some("other"));
    assert_eq!(
        decided(Some(&pin), &other_text),
        (State::Changed, Reason::TextChanged, Serving::Offered)
    );
    let mut unstable = offered("d", None);
    unstable.texts.insert(NO_ARGUMENTS.into(), OfferedText::Unstable);
    assert_eq!(decided(Some(&pin), &unstable).1, Reason::TextChanged);
    let other = offered("e", Some("t"));
    assert_eq!(
        decided(Some(&pin), &other),
        (State::Changed, Reason::DefinitionChanged, Serving::Approved)
    );
    let held = decide(Mode::Enforce, Some(&pin), &other, || false);
    assert_eq!((held.reason, held.serving), (Reason::ArgumentAdded, Serving::Nothing));
    pin.reject(other.version(), approval());
    assert_eq!(
        decided(Some(&pin), &other),
        (State::Rejected, Reason::VersionRejected, Serving::Approved)
    );
    assert_eq!(
        decided(Some(&pin), &offered("f", None)).0,
        State::Changed,
        "a third version is news"
    );
    pin.reject(version("d", Some("t")), approval());
    assert_eq!(
        decided(Some(&pin), &offered("d", None)),
        (State::Rejected, Reason::PromptRejected, Serving::Nothing)
    );
    for mode in [Mode::Off, Mode::Warn] {
        assert_eq!(decide(mode, Some(&pin), &other, || false).serving, Serving::Offered);
    }
    let library = Version { source: Some(digest("s")), ..version("d", None) };
    let pin = approved(library.clone());
    let edited = Offered { source: Some(digest("x")), ..offered("d", None) };
    assert_eq!(
        decided(Some(&pin), &edited),
        (State::Changed, Reason::SourceChanged, Serving::Offered)
    );
    assert_eq!((library.kind(), version("d", None).kind()), (PinKind::Source, PinKind::Definition));
}

#[test]
fn a_rollback_names_one_version_that_was_approved_before() {
    let mut pin = approved(version("one", Some("t1")));
    assert!(pin.clone().roll_back(None, approval()).is_err());
    pin.approve(version("two", None), approval());
    pin.approve(version("three", None), approval());
    assert_eq!(pin.clone().roll_back(None, approval()), Ok(version("two", None)));
    let one = digest("t1");
    let mut back = pin.clone();
    assert_eq!(back.roll_back(Some(&one), approval()), Ok(version("one", Some("t1"))));
    let previous: Vec<_> = back.previous.iter().map(|p| p.version.clone()).collect();
    assert_eq!(previous, [version("three", None), version("two", None)]);
    // Approved once more, it is no version before itself.
    let mut again = pin.clone();
    again.approve(version("three", None), approval());
    assert_eq!(again.previous, pin.previous);
    assert_eq!(again.roll_back(None, approval()), Ok(version("two", None)));
    // A rejected version is approved again only by its digest.
    let mut rejected = pin.clone();
    rejected.reject(version("three", None), approval());
    assert_eq!(rejected.clone().roll_back(None, approval()), Ok(version("two", None)));
    let three = digest("three");
    assert_eq!(rejected.roll_back(Some(&three), approval()), Ok(version("three", None)));
    for (prefix, why) in [
        ("0000000", "at least 8"),
        ("00000000", "several"),
        ("ffffffff", "no version with this digest"),
    ] {
        assert!(pin.clone().roll_back(Some(prefix), approval()).unwrap_err().contains(why));
    }
    for n in 0..9 {
        pin.approve(version(&format!("v{n}"), None), approval());
    }
    assert_eq!(pin.previous.len(), MAX_PREVIOUS);
}

/// An event in the life of a prompt.
#[derive(Clone, Debug)]
enum Step {
    /// The upstream offers another version.
    Offer {
        definition: &'static str,
        text: &'static str,
        fits: bool,
    },
    /// The gateway learns the text.
    Probe,
    /// The gateway starts again, and knows no text.
    Restart,
    /// A decision on the version that was shown at an earlier step.
    Approve,
    Reject,
    RollBack,
    /// A person is shown the version that is offered now.
    Look,
}

fn step() -> impl Strategy<Value = Step> {
    let names = || select(&["a", "b", "c"][..]);
    prop_oneof![
        3 => (names(), names(), any::<bool>())
            .prop_map(|(definition, text, fits)| Step::Offer { definition, text, fits }),
        2 => Just(Step::Probe),
        2 => Just(Step::Look),
        2 => Just(Step::Approve),
        1 => Just(Step::Reject),
        1 => Just(Step::RollBack),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #[test]
    fn nothing_is_served_that_nobody_approved(steps in prop::collection::vec(step(), 1..40)) {
        let mut pin: Option<Pin> = None;
        let (mut definition, mut text, mut fits) = ("a", "a", true);
        let mut now = offered("a", None);
        let mut shown = now.version();
        // The decisions of people, newest last: the model.
        let mut approved_once: Vec<Version> = Vec::new();
        for step in steps {
            match step {
                Step::Offer { definition: d, text: t, fits: f } => {
                    (definition, text, fits) = (d, t, f);
                    // A walk reports the definition only; texts of the definition before are
                    // forgotten.
                    now = offered(definition, None);
                }
                Step::Probe => now = offered(definition, Some(text)),
                Step::Restart => now = offered(definition, None),
                Step::Look => shown = now.version(),
                Step::Approve => {
                    pin.get_or_insert_default().approve(shown.clone(), approval());
                    approved_once.push(shown.clone());
                }
                Step::Reject => {
                    pin.get_or_insert_default().reject(shown.clone(), approval());
                    // Also if its text could not be had.
                    let seen = Offered {
                        definition: shown.definition.clone(),
                        source: None,
                        texts: shown.texts.iter().map(|(a, t)| (a.clone(), OfferedText::Known(t.clone()))).collect(),
                    };
                    let rejected = decide(Mode::Enforce, pin.as_ref(), &seen, || fits);
                    prop_assert_eq!(rejected.state, State::Rejected);
                }
                Step::RollBack => {
                    if let Some(pin) = &mut pin {
                        let _ = pin.roll_back(None, approval());
                    }
                }
            }
            let first = decide(Mode::Enforce, pin.as_ref(), &now, || fits);
            // Further passes over the same list change nothing.
            for _ in 0..3 {
                prop_assert_eq!(decide(Mode::Enforce, pin.as_ref(), &now, || fits), first);
            }
            let approved = pin.as_ref().and_then(|pin| pin.approved.as_ref()).map(|d| &d.version);
            if let Some(version) = approved {
                prop_assert!(approved_once.contains(version));
            }
            match (first.serving, approved) {
                (Serving::Nothing, _) => {}
                (Serving::Approved, approved) => prop_assert!(approved.is_some()),
                (Serving::Offered, None) => prop_assert!(false, "served without an approval"),
                (Serving::Offered, Some(approved)) => {
                    prop_assert_eq!(&approved.definition, &now.definition);
                }
            }
            prop_assert_eq!(first.state == State::Approved, approved.is_some_and(|v| v.matches(&now)));
            let warned = decide(Mode::Warn, pin.as_ref(), &now, || fits);
            prop_assert_eq!((warned.state, warned.serving), (first.state, Serving::Offered));
        }
    }
}
