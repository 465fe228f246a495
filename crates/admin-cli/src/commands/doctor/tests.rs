//! What the doctor concludes from what it was told.

use super::*;

#[test]
fn nothing_is_all_well_beside_a_warning() {
    assert_eq!(summary(0, 0), "all well");
    assert_eq!(summary(0, 1), "1 warning");
    assert_eq!(summary(2, 1), "2 faults, 1 warning");
    assert_eq!(summary(1, 0), "1 fault");
}

#[test]
fn a_countdown_is_left_out_and_the_rest_stays() {
    let told =
        "a: no answer; it is asked again in 145.693ms; b: no answer; it is asked again in 1s";
    assert_eq!(without_countdown(told), "a: no answer; b: no answer");
    assert_eq!(without_countdown("as it is"), "as it is");
}

#[test]
fn a_store_is_gone_only_if_the_gateway_says_so() {
    assert!(says_gone("# TYPE weir_store_answering gauge\nweir_store_answering 0\n"));
    assert!(!says_gone("weir_store_answering 1\nweir_store_may_evict 0\n"));
    assert!(!says_gone("weir_store_answering_since 0\n"));
    assert!(!says_gone(""));
}
