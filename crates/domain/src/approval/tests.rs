use proptest::prelude::*;
use proptest::sample::select;

use super::*;

fn digest(name: &str) -> DigestText {
    format!("sha256:{:0>64}", name.bytes().map(|b| format!("{b:02x}")).collect::<String>()).into()
}

fn attribution() -> Attribution {
    let (by, at) = ("alice".to_owned(), "2026-11-22T00:00:00Z".to_owned());
    Attribution { by, at, ..Attribution::default() }
}

fn roll_back(approval: &mut Approval, prefix: Option<&str>) -> Result<Version, &'static str> {
    let version = approval.earlier(prefix)?.clone();
    approval.approve(version.clone(), attribution());
    Ok(version)
}

fn version(definition: &str, text: Option<&str>) -> Version {
    let texts = text.map(|text| (NO_ARGUMENTS.into(), digest(text)));
    let texts = texts.into_iter().collect();
    let (variants, files) = Default::default();
    Version { definition: digest(definition), source: None, texts, variants, files }
}

fn offered(definition: &str, text: Option<&str>) -> Offered {
    let Version { definition, source, texts, .. } = version(definition, text);
    let texts = texts.into_iter().map(|(arguments, text)| (arguments, OfferedText::Known(text)));
    Offered { definition, source, texts: texts.collect(), files: Files::new() }
}

fn approved(version: Version) -> Approval {
    let mut approval = Approval::default();
    approval.approve(version, attribution());
    approval
}

fn decided(approval: Option<&Approval>, offered: &Offered) -> (ApprovalState, Reason, Serving) {
    let Decision { state, reason, serving } = decide(Mode::Enforce, approval, offered, || true);
    (state, reason, serving)
}

#[test]
fn each_transition_has_its_reason() {
    let mut approval = approved(version("d", Some("t")));
    let same = (ApprovalState::Approved, Reason::Same, Serving::Offered);
    assert_eq!(
        decided(None, &offered("d", None)),
        (ApprovalState::Pending, Reason::NeverApproved, Serving::Nothing)
    );
    assert_eq!(decided(Some(&approval), &offered("d", None)), same, "nothing is known of the text");
    assert_eq!(decided(Some(&approval), &offered("d", Some("t"))), same);
    let other_text = offered("d", Some("other"));
    assert_eq!(
        decided(Some(&approval), &other_text),
        (ApprovalState::Changed, Reason::TextChanged, Serving::Offered)
    );
    let mut unstable = offered("d", None);
    unstable.texts.insert(NO_ARGUMENTS.into(), OfferedText::Unstable);
    assert_eq!(decided(Some(&approval), &unstable).1, Reason::TextChanged);
    let other = offered("e", Some("t"));
    assert_eq!(
        decided(Some(&approval), &other),
        (ApprovalState::Changed, Reason::DefinitionChanged, Serving::Approved)
    );
    let held = decide(Mode::Enforce, Some(&approval), &other, || false);
    assert_eq!((held.reason, held.serving), (Reason::ArgumentAdded, Serving::Nothing));
    approval.reject(other.version(), attribution());
    assert_eq!(
        decided(Some(&approval), &other),
        (ApprovalState::Rejected, Reason::VersionRejected, Serving::Approved)
    );
    assert_eq!(
        decided(Some(&approval), &offered("f", None)).0,
        ApprovalState::Changed,
        "a third version is news"
    );
    approval.reject(version("d", Some("t")), attribution());
    assert_eq!(
        decided(Some(&approval), &offered("d", None)),
        (ApprovalState::Rejected, Reason::PromptRejected, Serving::Nothing)
    );
    for mode in [Mode::Off, Mode::Warn] {
        assert_eq!(decide(mode, Some(&approval), &other, || false).serving, Serving::Offered);
    }
    let library = Version { source: Some(digest("s")), ..version("d", None) };
    let approval = approved(library.clone());
    let edited = Offered { source: Some(digest("x")), ..offered("d", None) };
    assert_eq!(
        decided(Some(&approval), &edited),
        (ApprovalState::Changed, Reason::SourceChanged, Serving::Offered)
    );
    assert_eq!((library.class(), version("d", None).class()), (Class::Source, Class::Definition));
}

#[test]
fn a_rollback_names_one_version_that_was_approved_before() {
    let mut approval = approved(version("one", Some("t1")));
    assert!(approval.earlier(None).is_err());
    approval.approve(version("two", None), attribution());
    approval.approve(version("three", None), attribution());
    assert_eq!(roll_back(&mut approval.clone(), None), Ok(version("two", None)));
    let one = digest("t1");
    let mut back = approval.clone();
    assert_eq!(roll_back(&mut back, Some(&one)), Ok(version("one", Some("t1"))));
    let previous: Vec<_> = back.previous.iter().map(|p| p.version.clone()).collect();
    assert_eq!(previous, [version("three", None), version("two", None)]);
    // Approved once more, it is no version before itself.
    let mut again = approval.clone();
    again.approve(version("three", None), attribution());
    assert_eq!(again.previous, approval.previous);
    assert_eq!(roll_back(&mut again, None), Ok(version("two", None)));
    // A rejected version is approved again only by its digest.
    let mut rejected = approval.clone();
    rejected.reject(version("three", None), attribution());
    assert_eq!(roll_back(&mut rejected.clone(), None), Ok(version("two", None)));
    let three = digest("three");
    assert_eq!(roll_back(&mut rejected, Some(&three)), Ok(version("three", None)));
    for (prefix, why) in [
        ("0000000", "at least 8"),
        ("00000000", "several"),
        ("ffffffff", "no version with this digest"),
    ] {
        assert!(approval.earlier(Some(prefix)).unwrap_err().contains(why));
    }
    for n in 0..9 {
        approval.approve(version(&format!("v{n}"), None), attribution());
    }
    assert_eq!(approval.previous.len(), MAX_PREVIOUS);
}

#[test]
fn a_variant_is_approved_beside_the_text_as_long_as_that_stays() {
    let key: Arc<str> = NO_ARGUMENTS.into();
    let mut with = version("d", Some("morning"));
    with.variants.insert((key.clone(), digest("evening")));
    let approval = approved(with.clone());
    for (text, expected) in [
        ("morning", ApprovalState::Approved),
        ("evening", ApprovalState::Approved),
        ("night", ApprovalState::Changed),
    ] {
        assert_eq!(decided(Some(&approval), &offered("d", Some(text))).0, expected);
    }
    // The same version, whichever of its texts is offered.
    for text in ["morning", "evening"] {
        let mut now = version("d", Some(text));
        now.keep_variants(&with);
        assert_eq!(now, with);
    }
    for mut other in [version("d", Some("night")), version("e", Some("morning"))] {
        let before = other.clone();
        other.keep_variants(&with);
        assert_eq!(other, before);
    }
    assert_eq!((with.class(), with.digests().count()), (Class::Variants, 3));
    assert_eq!(version("d", Some("morning")).class(), Class::Text);
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
        let mut approval: Option<Approval> = None;
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
                    approval.get_or_insert_default().approve(shown.clone(), attribution());
                    approved_once.push(shown.clone());
                }
                Step::Reject => {
                    approval.get_or_insert_default().reject(shown.clone(), attribution());
                    // Also if its text could not be had.
                    let seen = Offered {
                        definition: shown.definition.clone(),
                        source: None,
                        texts: shown.texts.iter().map(|(a, t)| (a.clone(), OfferedText::Known(t.clone()))).collect(),
                        files: Files::new(),
                    };
                    let rejected = decide(Mode::Enforce, approval.as_ref(), &seen, || fits);
                    prop_assert_eq!(rejected.state, ApprovalState::Rejected);
                }
                Step::RollBack => {
                    if let Some(approval) = &mut approval {
                        let _ = roll_back(approval, None);
                    }
                }
            }
            let first = decide(Mode::Enforce, approval.as_ref(), &now, || fits);
            // Further passes over the same list change nothing.
            for _ in 0..3 {
                prop_assert_eq!(decide(Mode::Enforce, approval.as_ref(), &now, || fits), first);
            }
            let approved = approval.as_ref().and_then(|approval| approval.approved.as_ref()).map(|d| &d.version);
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
            prop_assert_eq!(first.state == ApprovalState::Approved, approved.is_some_and(|v| v.matches(&now)));
            let warned = decide(Mode::Warn, approval.as_ref(), &now, || fits);
            prop_assert_eq!((warned.state, warned.serving), (first.state, Serving::Offered));
        }
    }
}

#[test]
fn a_skill_is_served_as_it_was_approved_or_not_at_all() {
    let offered = |definition: &str| Offered {
        files: Files::from([("SKILL.md".into(), digest("file"))]),
        ..offered(definition, None)
    };
    let version = offered("d").version();
    assert_eq!((version.class(), version.digests().count()), (Class::Files, 2));
    let mut approval = Approval::default();
    let of = |approval: &Approval, definition: &str, mode, has_snapshot| {
        let decision = decide_skill(mode, Some(approval), &offered(definition), has_snapshot);
        (decision.state, decision.reason, decision.serving)
    };
    let pending = (ApprovalState::Pending, Reason::NeverApproved, Serving::Nothing);
    assert_eq!(of(&approval, "d", Mode::Enforce, true), pending);
    approval.approve(version.clone(), attribution());
    let same = (ApprovalState::Approved, Reason::Same, Serving::Offered);
    assert_eq!(of(&approval, "d", Mode::Enforce, false), same);
    let changed = |serving| (ApprovalState::Changed, Reason::FilesChanged, serving);
    assert_eq!(of(&approval, "x", Mode::Enforce, false), changed(Serving::Nothing));
    assert_eq!(of(&approval, "x", Mode::Enforce, true), changed(Serving::Approved));
    assert_eq!(of(&approval, "x", Mode::Warn, false), changed(Serving::Offered));
    approval.reject(offered("x").version(), attribution());
    let rejected = (ApprovalState::Rejected, Reason::VersionRejected, Serving::Approved);
    assert_eq!(of(&approval, "x", Mode::Enforce, true), rejected);
    approval.withdraw(attribution());
    let withdrawn = (ApprovalState::Rejected, Reason::PromptRejected, Serving::Nothing);
    assert_eq!(of(&approval, "d", Mode::Enforce, true), withdrawn);
}
