use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;
use domain::calls::caller::Caller;
use domain::fault::TokenFault;

fn settings() -> config::Breaker {
    let (open_min, open_max) = (Duration::from_secs(1), Duration::from_secs(5));
    config::Breaker { failures: 4, open_min, open_max }
}

fn breaker() -> Arc<CircuitBreaker> {
    CircuitBreaker::new("up", settings(), true)
}

/// Returns a breaker whose probes are calls.
fn probed_by_calls() -> Arc<CircuitBreaker> {
    CircuitBreaker::new("up", settings(), false)
}

fn caller(id: &str) -> Holder {
    Holder::Caller(Caller::new(id))
}

fn exited() -> Kind {
    Kind::ChildExited(Arc::default())
}

fn no_token() -> Kind {
    Kind::NoToken { fault: TokenFault::NoSubjectToken, detail: String::new() }
}

/// One call of `id`, with its outcome. Returns whether it was admitted.
fn call(
    breaker: &Arc<CircuitBreaker>,
    [id, prompt]: [&str; 2],
    failure: Option<&Kind>,
    now: Instant,
) -> bool {
    let permit = breaker.admit(&caller(id), prompt, now);
    permit.map(|permit| permit.end(failure, now)).is_ok()
}

/// One call of `id` that fails. Returns whether the breaker is open then.
fn fail(breaker: &Arc<CircuitBreaker>, whose: [&str; 2], now: Instant) -> bool {
    call(breaker, whose, Some(&Kind::Timeout), now);
    breaker.open_until().is_some()
}

/// Lets two callers fail with two prompts until it opens.
fn open(breaker: &Arc<CircuitBreaker>, now: Instant) {
    for whose in [["a", "p"], ["b", "q"], ["a", "p"]] {
        assert!(!fail(breaker, whose, now));
    }
    assert!(fail(breaker, ["b", "q"], now));
}

#[test]
fn the_failures_of_one_caller_open_nothing() {
    let (breaker, now) = (breaker(), Instant::now());
    for prompt in 0..100 {
        assert!(!fail(&breaker, ["a", &format!("p{prompt}")], now));
    }
    // A caller who fails at will does not turn the single failure of another into one of all.
    assert!(!fail(&breaker, ["b", "q"], now));
    assert!(call(&breaker, ["a", "p0"], None, now));
    for whose in [["a", "p"], ["a", "q"], ["a", "r"], ["b", "s"]] {
        assert!(!fail(&breaker, whose, now), "three of four are of one caller");
    }
    assert!(fail(&breaker, ["b", "q"], now));
}

#[test]
fn a_prompt_that_fails_for_everybody_opens_nothing() {
    let (breaker, now) = (breaker(), Instant::now());
    for id in 0..100 {
        assert!(!fail(&breaker, [&id.to_string(), "boom"], now));
    }
    assert!(!fail(&breaker, ["a", "q"], now), "a single failure of another prompt");
    assert!(fail(&breaker, ["a", "r"], now), "half of the failures are of other prompts");
}

#[test]
fn a_threshold_of_a_single_failure_still_takes_two_callers_and_two_prompts() {
    let settings = config::Breaker { failures: 1, ..settings() };
    let (breaker, now) = (CircuitBreaker::new("up", settings, true), Instant::now());
    assert!(!fail(&breaker, ["a", "p"], now));
    assert!(!fail(&breaker, ["a", "q"], now));
    assert!(fail(&breaker, ["b", "p"], now));
}

#[test]
fn it_opens_when_several_callers_fail_with_several_prompts_and_closes_when_a_check_is_answered() {
    let (breaker, start) = (breaker(), Instant::now());
    let after = |ms| start + Duration::from_millis(ms);
    open(&breaker, start);
    assert_eq!(breaker.open_until(), Some(after(1_000)));
    assert!(!call(&breaker, ["c", "r"], None, start));
    // Only the gateway's own check closes it, also when it is due.
    assert!(!call(&breaker, ["c", "r"], None, after(1_500)));
    for (at, wait) in [(1_500, 2), (3_500, 4), (7_500, 5), (12_500, 5)] {
        breaker.checked(Some(&Kind::Timeout), after(at));
        assert_eq!(breaker.open_until(), Some(after(at) + Duration::from_secs(wait)));
    }
    let unknown = Kind::Error { code: -32601, message: String::new(), data: None };
    breaker.checked(Some(&unknown), after(17_500));
    assert_eq!(breaker.open_until(), None, "an error is an answer");
    assert!(!fail(&breaker, ["a", "p"], after(17_500)), "the count starts at zero");
}

#[test]
fn an_answer_ends_the_row_of_failures() {
    let (breaker, now) = (breaker(), Instant::now());
    let refused = Kind::AuthFailed { status: 401 };
    for answer in [None, Some(&refused)] {
        for whose in [["a", "p"], ["b", "q"], ["a", "p"]] {
            assert!(!fail(&breaker, whose, now));
        }
        assert!(call(&breaker, ["c", "p"], answer, now));
    }
    assert!(!fail(&breaker, ["b", "q"], now));
}

#[test]
fn an_upstream_that_does_not_answer_the_gateway_either_is_refused_to_all() {
    let (breaker, now) = (breaker(), Instant::now());
    let checked = |failure| {
        breaker.checked(failure, now);
        breaker.open_until().is_some()
    };
    assert!(!checked(Some(&Kind::Timeout)), "no call has failed");
    for _ in 0..4 {
        assert!(!fail(&breaker, ["a", "p"], now));
    }
    // Another caller is answered meanwhile: it is not the upstream.
    call(&breaker, ["b", "p"], None, now);
    assert!(!checked(Some(&Kind::Timeout)));
    for _ in 0..4 {
        assert!(!fail(&breaker, ["c", "p"], now));
    }
    assert!(checked(Some(&Kind::Timeout)));
    assert!(!call(&breaker, ["b", "q"], None, now));
    assert!(!checked(None));
    assert!(call(&breaker, ["b", "q"], None, now));
}

#[test]
fn without_checks_of_the_gateway_a_call_probes_after_each_wait() {
    let (breaker, start) = (probed_by_calls(), Instant::now());
    let after = |secs| start + Duration::from_secs(secs);
    open(&breaker, start);
    let admit = |id, now| breaker.admit(&caller(id), "r", now);
    let slow = admit("c", after(1)).unwrap();
    assert!(admit("d", after(1)).is_err(), "one at a time");
    assert!(admit("d", after(2)).is_err(), "the next wait is twice as long");
    let failed = admit("d", after(3)).expect("a probe that takes long admits the next one");
    failed.end(Some(&Kind::Timeout), after(3));
    assert!(admit("d", after(6)).is_err());
    slow.end(None, after(6));
    assert!(admit("d", after(6)).is_ok(), "the first probe has succeeded");
}

#[test]
fn a_probe_that_is_cancelled_lets_the_next_call_probe_at_once() {
    let breaker = probed_by_calls();
    let now = Instant::now();
    open(&breaker, now);
    let due = breaker.open_until().unwrap();
    for _ in 0..5 {
        drop(breaker.admit(&caller("a"), "p", due).unwrap());
    }
    let probe = breaker.admit(&caller("b"), "q", due).unwrap();
    assert!(breaker.admit(&caller("c"), "p", due).is_err(), "one probe at a time");
    assert!(call(&breaker, ["c", "p"], None, breaker.open_until().unwrap()));
    // The circuit was closed, and is opened again, before the probe is cancelled.
    open(&breaker, due);
    let until = breaker.open_until();
    drop(probe);
    assert_eq!(breaker.open_until(), until);
}

#[test]
fn a_call_that_is_not_sent_changes_nothing() {
    let (breaker, start) = (probed_by_calls(), Instant::now());
    for whose in [["a", "p"], ["b", "q"], ["a", "p"]] {
        fail(&breaker, whose, start);
    }
    for unsent in [&no_token(), &Kind::AccessEnded, &Kind::Busy] {
        assert!(call(&breaker, ["c", "p"], Some(unsent), start));
    }
    assert!(fail(&breaker, ["b", "q"], start), "the row of failures went on");
    let due = start + Duration::from_secs(1);
    for _ in 0..9 {
        assert!(call(&breaker, ["c", "p"], Some(&no_token()), due), "nothing was probed");
    }
    assert!(call(&breaker, ["a", "p"], Some(&Kind::Timeout), due), "this call is the probe");
    assert_eq!(breaker.open_until(), Some(due + Duration::from_secs(2)));
}

#[test]
fn calls_that_end_a_child_process_open_nothing() {
    let (breaker, now) = (breaker(), Instant::now());
    for id in ["a", "b", "c", "d", "e"] {
        for prompt in ["p", "q"] {
            assert!(call(&breaker, [id, prompt], Some(&exited()), now));
        }
    }
    assert_eq!(breaker.open_until(), None);
    breaker.checked(Some(&Kind::Timeout), now);
    assert_eq!(breaker.open_until(), None);
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
    breaker.close();
    assert!(!fail(&breaker, ["a", "p"], now), "a new connection starts at zero");
}

#[tokio::test(start_paused = true)]
async fn a_check_is_due_when_calls_fail_in_a_row_and_when_the_open_time_is_over() {
    let breaker = breaker();
    let is_due =
        async || tokio::time::timeout(Duration::from_millis(1), breaker.check_due()).await.is_ok();
    assert!(!is_due().await);
    for _ in 0..4 {
        fail(&breaker, ["a", "p"], Instant::now());
    }
    assert!(is_due().await);
    // It answers: the next check takes as many failures again.
    breaker.checked(None, Instant::now());
    for _ in 0..4 {
        assert!(!is_due().await);
        fail(&breaker, ["a", "p"], Instant::now());
    }
    assert!(is_due().await);
    breaker.checked(Some(&Kind::Timeout), Instant::now());
    assert!(!is_due().await);
    let start = Instant::now();
    breaker.check_due().await;
    assert!(start.elapsed() >= Duration::from_millis(990));
    breaker.close();
    open(&breaker, Instant::now());
    assert!(!is_due().await, "only after the wait");
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

/// Failures in a row, each with its caller and its prompt.
fn failures() -> impl Strategy<Value = Vec<(u8, u8)>> {
    prop::collection::vec((0..4_u8, 0..4_u8), 0..40)
}

/// Whether several keys have met `needed` failures, of which each counts for half at most.
fn are_of_several(keys: impl Iterator<Item = u8>, needed: usize) -> bool {
    let mut counts = [0_usize; 4];
    keys.for_each(|key| counts[usize::from(key)] += 1);
    counts.iter().map(|count| (*count).min(needed.div_ceil(2))).sum::<usize>() >= needed
}

proptest! {
    #[test]
    fn open_times_stay_within_their_bounds_and_a_call_probes_only_after_each(
        steps in prop::collection::vec(step(), 1..300),
        has_checks in any::<bool>(),
    ) {
        let breaker = CircuitBreaker::new("up", settings(), has_checks);
        let mut now = Instant::now();
        let mut permits = Vec::<BreakerPermit>::new();
        for step in steps {
            let before = breaker.open_until();
            match step {
                Step::Wait(ms) => now += Duration::from_millis(ms),
                Step::Admit(id, prompt) => {
                    let admitted = breaker.admit(&caller(&id.to_string()), &prompt.to_string(), now);
                    let is_due = before.is_none_or(|until| !has_checks && until <= now);
                    prop_assert_eq!(admitted.is_ok(), is_due);
                    permits.extend(admitted);
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
            let opened = breaker.open_until().filter(|until| before != Some(*until));
            if let Some(until) = opened.filter(|until| *until > now) {
                prop_assert!((Duration::from_secs(1)..=Duration::from_secs(5)).contains(&(until - now)));
            }
        }
    }

    #[test]
    fn it_opens_only_for_failures_of_several_callers_with_several_prompts(failed in failures()) {
        let (breaker, now) = (breaker(), Instant::now());
        for (at, (id, prompt)) in failed.iter().enumerate() {
            let is_open = fail(&breaker, [&id.to_string(), &prompt.to_string()], now);
            let row = &failed[..=at];
            let of_callers = are_of_several(row.iter().map(|(id, _)| *id), 4);
            let of_prompts = are_of_several(row.iter().map(|(_, prompt)| *prompt), 4);
            prop_assert_eq!(is_open, of_callers && of_prompts);
            if is_open {
                break;
            }
        }
    }
}

#[test]
fn memory_is_bounded_however_many_callers_fail() {
    let (breaker, now) = (breaker(), Instant::now());
    for id in 0..1_000_u32 {
        let network = Holder::Network(Ipv4Addr::from_bits(id).into());
        breaker.admit(&network, "boom", now).unwrap().end(Some(&Kind::Timeout), now);
    }
    assert!(breaker.state.locked().callers.keys() <= settings().failures);
    assert_eq!(breaker.state.locked().prompts.keys(), 1);
}
