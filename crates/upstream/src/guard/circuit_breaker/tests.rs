use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;
use domain::caller::Caller;
use domain::fault::TokenFault;

fn settings() -> config::Breaker {
    let (open_min, open_max) = (Duration::from_secs(1), Duration::from_secs(5));
    config::Breaker { failures: 4, open_min, open_max }
}

fn breaker() -> Arc<CircuitBreaker> {
    CircuitBreaker::new(settings(), true)
}

fn caller(id: &str) -> Holder {
    Holder::Caller(Caller::new(id))
}

fn exited() -> Kind {
    Kind::ChildExited(Arc::default())
}

/// One call of `id`, with its outcome.
fn call(
    breaker: &Arc<CircuitBreaker>,
    (id, prompt): (&str, &str),
    failure: Option<&Kind>,
    now: Instant,
) -> Result<Option<BreakerTransition>, BreakerRefusal> {
    Ok(breaker.admit(&caller(id), prompt, now)?.end(failure, now))
}

fn fail(
    breaker: &Arc<CircuitBreaker>,
    whose: (&str, &str),
    now: Instant,
) -> Option<BreakerTransition> {
    call(breaker, whose, Some(&Kind::Timeout), now).unwrap()
}

fn scope_of(refused: Result<Option<BreakerTransition>, BreakerRefusal>) -> &'static str {
    refused.expect_err("it is refused").scope.as_str()
}

#[test]
fn what_one_caller_provokes_with_one_prompt_is_held_against_nothing_else() {
    let (breaker, now) = (breaker(), Instant::now());
    for _ in 0..3 {
        assert_eq!(fail(&breaker, ("a", "boom"), now), None);
    }
    // One answer, even an error, resets the count.
    let refused = Kind::AuthFailed { status: 401 };
    call(&breaker, ("a", "boom"), Some(&refused), now).unwrap();
    for _ in 0..3 {
        assert_eq!(fail(&breaker, ("a", "boom"), now), None);
    }
    let opened = fail(&breaker, ("a", "boom"), now);
    assert!(matches!(opened, Some(BreakerTransition::Opened { failures: 4, .. })), "{opened:?}");
    assert_eq!(scope_of(call(&breaker, ("a", "boom"), None, now)), "one prompt of one caller");
    assert!(breaker.open_until().is_none());
    // Another prompt of that caller, and that prompt of another.
    call(&breaker, ("a", "fine"), None, now).unwrap();
    call(&breaker, ("b", "boom"), None, now).unwrap();
    // A hundred failing prompts of one caller are still those of one caller.
    for prompt in 0..100 {
        for _ in 0..4 {
            fail(&breaker, ("c", &format!("p{prompt}")), now);
        }
    }
    assert!(breaker.open_until().is_none());
    call(&breaker, ("b", "fine"), None, now).unwrap();
}

#[test]
fn a_prompt_that_fails_for_several_callers_is_refused_to_all_and_the_others_are_not() {
    let (breaker, now) = (breaker(), Instant::now());
    // One who fails at will does not make the single failure of another everybody's.
    for _ in 0..3 {
        fail(&breaker, ("a", "boom"), now);
    }
    assert_eq!(fail(&breaker, ("b", "boom"), now), None);
    call(&breaker, ("c", "boom"), None, now).unwrap();
    for whose in [("d", "boom"), ("e", "boom"), ("d", "boom")] {
        assert_eq!(fail(&breaker, whose, now), None);
    }
    assert!(fail(&breaker, ("e", "boom"), now).is_some());
    assert_eq!(scope_of(call(&breaker, ("c", "boom"), None, now)), "one prompt");
    call(&breaker, ("a", "fine"), None, now).unwrap();
    // Any caller may probe it, one at a time.
    let later = now + Duration::from_secs(1);
    let probe = breaker.admit(&caller("c"), "boom", later).unwrap();
    assert_eq!(scope_of(call(&breaker, ("b", "boom"), None, later)), "one prompt");
    let closed = BreakerTransition::Closed { scope: probe.key.scopes()[1] };
    assert_eq!(probe.end(None, later), Some(closed));
    call(&breaker, ("b", "boom"), None, later).unwrap();
}

#[test]
fn all_calls_are_refused_when_several_callers_fail_with_several_prompts() {
    let (breaker, start) = (breaker(), Instant::now());
    let after = |ms| start + Duration::from_millis(ms);
    for whose in [("a", "p"), ("b", "q"), ("a", "p")] {
        assert_eq!(fail(&breaker, whose, start), None);
    }
    let opened = fail(&breaker, ("b", "q"), start);
    let probe_in = Duration::from_secs(1);
    let scope = BreakerScope::All;
    assert_eq!(opened, Some(BreakerTransition::Opened { scope, failures: 4, probe_in }));
    assert_eq!(scope_of(call(&breaker, ("c", "r"), None, start)), "all calls");
    // Only the gateway's own check closes it, also when it is due.
    assert_eq!(scope_of(call(&breaker, ("c", "r"), None, after(1_500))), "all calls");
    for (at, wait) in [(1_500, 2), (3_500, 4), (7_500, 5), (12_500, 5)] {
        let probe_in = Duration::from_secs(wait);
        let reopened = Some(BreakerTransition::Reopened { scope, probe_in });
        assert_eq!(breaker.checked(Some(&Kind::Timeout), after(at)), reopened);
        assert_eq!(breaker.open_until(), Some(after(at) + probe_in));
    }
    let unknown = Kind::Error { code: -32601, message: String::new(), data: None };
    let closed = breaker.checked(Some(&unknown), after(17_500));
    assert_eq!(closed, Some(BreakerTransition::Closed { scope }), "an error is an answer");
    assert_eq!(fail(&breaker, ("a", "p"), after(17_500)), None, "the count starts at zero");
}

#[test]
fn an_upstream_that_does_not_answer_the_gateway_either_is_refused_to_all() {
    let (breaker, now) = (breaker(), Instant::now());
    assert_eq!(breaker.checked(Some(&Kind::Timeout), now), None, "no call has failed");
    for _ in 0..4 {
        fail(&breaker, ("a", "p"), now);
    }
    // Another caller is answered meanwhile: it is not the upstream.
    call(&breaker, ("b", "p"), None, now).unwrap();
    assert_eq!(breaker.checked(Some(&Kind::Timeout), now), None);
    for _ in 0..4 {
        fail(&breaker, ("c", "p"), now);
    }
    let opened = breaker.checked(Some(&Kind::Timeout), now);
    assert!(matches!(opened, Some(BreakerTransition::Opened { .. })), "{opened:?}");
    assert_eq!(scope_of(call(&breaker, ("b", "q"), None, now)), "all calls");
    assert!(breaker.checked(None, now).is_some());
    call(&breaker, ("c", "p"), None, now).expect("the upstream was gone: it is not held against p");
}

#[test]
fn without_checks_of_the_gateway_a_call_probes_for_all() {
    let (breaker, now) = (CircuitBreaker::new(settings(), false), Instant::now());
    for whose in [("a", "p"), ("b", "q"), ("a", "p"), ("b", "q")] {
        fail(&breaker, whose, now);
    }
    let later = now + Duration::from_secs(1);
    let probe = breaker.admit(&caller("c"), "r", later).unwrap();
    assert!(breaker.admit(&caller("d"), "r", later).is_err(), "one at a time");
    drop(probe);
    let mut probe = breaker.admit(&caller("d"), "r", later).expect("the first was cancelled");
    // An interim message proves that the upstream works.
    assert!(probe.confirm_alive().is_some());
    assert!(breaker.admit(&caller("c"), "r", later).is_ok());
}

#[test]
fn a_child_process_that_calls_end_is_unavailable_to_nobody_else() {
    let (breaker, now) = (breaker(), Instant::now());
    for id in ["a", "b", "c", "d", "e"] {
        for prompt in ["p", "q"] {
            call(&breaker, (id, prompt), Some(&exited()), now).unwrap();
            call(&breaker, (id, prompt), Some(&exited()), now).unwrap();
        }
    }
    assert!(breaker.open_until().is_none());
    for _ in 0..2 {
        call(&breaker, ("a", "p"), Some(&exited()), now).unwrap();
    }
    assert_eq!(scope_of(call(&breaker, ("a", "p"), None, now)), "one prompt of one caller");
    // The circuit of a caller outlasts the connections that the caller ends, and not the
    // return of an upstream that was gone.
    breaker.close();
    assert!(call(&breaker, ("a", "p"), None, now).is_err());
    breaker.reset();
    call(&breaker, ("a", "p"), None, now).unwrap();
}

#[test]
fn a_call_that_is_not_sent_changes_nothing() {
    let (breaker, start) = (breaker(), Instant::now());
    let no_token = Kind::NoToken { fault: TokenFault::NoSubjectToken, detail: String::new() };
    for _ in 0..3 {
        fail(&breaker, ("a", "p"), start);
    }
    for unsent in [&no_token, &Kind::AccessEnded, &Kind::Busy] {
        assert_eq!(call(&breaker, ("a", "p"), Some(unsent), start), Ok(None));
    }
    fail(&breaker, ("a", "p"), start);
    let until = call(&breaker, ("a", "p"), None, start).unwrap_err().until;
    assert_eq!(call(&breaker, ("a", "p"), Some(&no_token), until), Ok(None), "nothing was probed");
    let closed = call(&breaker, ("a", "p"), None, until).expect("the next call is the probe");
    assert!(closed.is_some());
}

#[test]
fn calls_in_flight_when_it_opens_extend_nothing() {
    let (breaker, now) = (breaker(), Instant::now());
    let admit = |id, prompt| breaker.admit(&caller(id), prompt, now).unwrap();
    let in_flight: Vec<_> = (0..10).flat_map(|_| [admit("a", "p"), admit("b", "q")]).collect();
    for permit in in_flight {
        permit.end(Some(&Kind::Timeout), now);
    }
    assert_eq!(breaker.open_until(), Some(now + Duration::from_secs(1)));
}

#[test]
fn what_is_remembered_is_bounded_and_nobody_takes_the_places_of_others() {
    let (breaker, now) = (breaker(), Instant::now());
    for _ in 0..4 {
        fail(&breaker, ("b", "own"), now);
    }
    call(&breaker, ("b", "fine"), None, now).unwrap();
    for prompt in 0..3 * MAX_NARROW {
        fail(&breaker, ("a", &prompt.to_string()), now);
    }
    assert!(breaker.lock().narrow.len() <= MAX_NARROW);
    assert!(call(&breaker, ("b", "own"), None, now).is_err(), "it is still held against b");
    let network = Holder::Network(Ipv4Addr::LOCALHOST.into());
    assert!(breaker.admit(&network, "own", now).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_check_is_due_when_calls_fail_in_a_row_and_when_the_open_time_is_over() {
    let breaker = breaker();
    let is_due =
        async || tokio::time::timeout(Duration::from_millis(1), breaker.check_due()).await.is_ok();
    assert!(!is_due().await);
    for _ in 0..4 {
        fail(&breaker, ("a", "p"), Instant::now());
    }
    assert!(is_due().await);
    breaker.checked(Some(&Kind::Timeout), Instant::now());
    assert!(!is_due().await);
    let start = Instant::now();
    breaker.check_due().await;
    assert!(start.elapsed() >= Duration::from_millis(990));
}

/// An event of a breaker with calls in flight.
#[derive(Clone, Debug)]
enum Step {
    Admit(u8, u8),
    Wait(u64),
    /// The outcome of the call at this index.
    End(usize, Option<Kind>),
    Cancel(usize),
    Checked(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let outcomes = prop_oneof![
        1 => Just(None),
        2 => Just(Some(Kind::Timeout)),
        1 => Just(Some(exited())),
        1 => Just(Some(Kind::Busy)),
        1 => Just(Some(Kind::AuthFailed { status: 401 })),
    ];
    prop_oneof![
        6 => (0..3_u8, 0..3_u8).prop_map(|(id, prompt)| Step::Admit(id, prompt)),
        2 => (0..3_000_u64).prop_map(Step::Wait),
        6 => (0..8_usize, outcomes).prop_map(|(at, kind)| Step::End(at, kind)),
        1 => (0..8_usize).prop_map(Step::Cancel),
        1 => any::<bool>().prop_map(Step::Checked),
    ]
}

proptest! {
    /// A caller who is always answered is refused only by an upstream that did not answer the
    /// gateway, or failed several others.
    #[test]
    fn open_times_stay_within_their_bounds_and_one_call_probes_at_a_time(
        steps in prop::collection::vec(step(), 1..300),
        has_checks in any::<bool>(),
    ) {
        let breaker = CircuitBreaker::new(settings(), has_checks);
        let mut now = Instant::now();
        let mut permits = Vec::<BreakerPermit>::new();
        for step in steps {
            let before = breaker.open_until();
            match step {
                Step::Wait(ms) => now += Duration::from_millis(ms),
                Step::Admit(id, prompt) => {
                    let admitted = breaker.admit(&caller(&id.to_string()), &prompt.to_string(), now);
                    match admitted {
                        Ok(permit) => permits.push(permit),
                        Err(refusal) => prop_assert!(refusal.until >= now),
                    }
                }
                Step::End(at, kind) if at < permits.len() => {
                    permits.swap_remove(at).end(kind.as_ref(), now);
                }
                Step::Cancel(at) if at < permits.len() => drop(permits.swap_remove(at)),
                Step::Checked(answers) => {
                    breaker.checked((!answers).then_some(&Kind::Timeout), now);
                }
                Step::End(..) | Step::Cancel(_) => {}
            }
            let state = breaker.lock();
            let narrow = state.narrow.values().map(|narrow| &narrow.circuit);
            for circuit in narrow.chain([&state.shared]) {
                let probing = permits.iter().filter(|permit| {
                    permit.probe.is_some() && permit.probe == circuit.probe
                });
                prop_assert!(probing.count() <= 1);
                prop_assert!(circuit.probe.is_none() || circuit.open_until.is_some());
            }
            let opened = state.shared.open_until.filter(|until| before != Some(*until));
            if let Some(until) = opened {
                prop_assert!((Duration::from_secs(1)..=Duration::from_secs(5)).contains(&(until - now)));
            }
        }
    }
}
