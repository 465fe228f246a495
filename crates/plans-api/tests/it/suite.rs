//! Every scenario on SQLite as a test of its own, and all of them on one Postgres server.

use crate::api::Api;
use crate::postgres::Postgres;
use crate::{
    approvals, audit, backup, cases, catalog, codes, first_door, killswitch, lookup, poison, prune,
    restored, scenarios, versions,
};

macro_rules! suite {
    ($($module:ident :: $name:ident),* $(,)?) => {
        $(
            #[tokio::test]
            async fn $name() {
                let api = Api::sqlite().await;
                $module::$name(&api).await;
                api.stop().await;
            }
        )*

        #[tokio::test]
        async fn all_of_it_holds_on_postgres() {
            let postgres = Postgres::start().await;
            $(
                eprintln!("on postgres: {}", stringify!($name));
                let api = Api::on(postgres.database(stringify!($name))).await;
                $module::$name(&api).await;
                api.stop().await;
            )*
        }
    };
}

suite! {
    cases::c02_rates_above_one_per_millisecond_are_plans_like_others,
    cases::c03_numbers_too_large_to_count_are_refused_by_name,
    cases::c08_zero_and_negative_numbers_never_mean_unlimited,
    cases::c08_a_change_that_cannot_be_read_holds_up_no_gateway,
    poison::c08_a_damaged_key_client_or_rollout_holds_up_nobody_else,
    cases::c28_one_bad_object_of_three_and_nothing_is_applied,
    cases::c29_numbers_that_do_not_read_are_named_with_their_value,
    prune::what_carries_the_label_and_is_in_no_file_goes_and_nothing_else,
    prune::more_than_a_tenth_goes_only_if_the_caller_says_how_many,
    prune::what_is_in_use_is_not_pruned_and_nothing_of_the_rest_happens,
    prune::a_file_that_says_whether_a_client_may_call_is_obeyed,
    prune::a_silent_gateway_is_forgotten_and_a_live_one_is_not,
    prune::a_change_that_is_only_tried_is_answered_and_not_kept,
    scenarios::revisions_have_no_gaps_under_concurrent_writers,
    scenarios::a_change_and_its_audit_row_are_one_transaction,
    scenarios::a_plan_is_made_changed_and_deleted,
    cases::the_largest_plan_is_saved_and_told,
    scenarios::a_client_is_moved_suspended_and_deleted,
    scenarios::a_key_is_shown_once_found_by_its_hash_and_revoked_for_good,
    scenarios::a_rule_for_all_replaces_single_ones_and_rollback_is_always_possible,
    scenarios::a_waiting_gateway_is_woken_by_a_change,
    scenarios::a_gateway_that_cannot_go_on_is_told_to_read_the_snapshot,
    scenarios::the_bootstrap_token_makes_one_admin_and_ends,
    scenarios::lists_come_in_pages_and_miss_nothing,
    scenarios::what_is_known_twice_or_not_at_all_is_refused,
    scenarios::a_row_damaged_by_hand_hides_no_other_and_can_be_written_anew,
    scenarios::no_control_character_comes_in_anywhere,
    audit::whoever_writes_over_the_audit_is_found_at_the_first_bad_row,
    audit::a_tip_kept_elsewhere_shows_what_the_database_alone_cannot,
    audit::a_long_chain_is_walked_in_parts,
    audit::the_audit_is_found_by_actor_object_and_time,
    backup::what_was_revoked_after_a_backup_stays_revoked,
    backup::a_file_that_cannot_be_used_says_why_and_changes_nothing,
    restored::what_ended_after_a_backup_stays_ended_and_its_successor_opens,
    restored::a_restore_that_is_only_tried_checks_all_and_changes_nothing,
    restored::a_call_that_a_restore_undid_is_done_again,
    lookup::a_thousand_hashes_are_answered_each_with_its_own,
    poison::no_damaged_row_hides_the_rest_of_its_list,
    first_door::f33_no_poisoned_plan_comes_in_by_the_api,
    killswitch::it_is_set_for_all_told_to_gateways_and_cleared_by_its_id,
    catalog::a_client_has_limits_of_its_own_until_they_end,
    catalog::an_override_is_checked_and_the_database_checks_it_again,
    catalog::a_key_is_rotated_on_one_id_and_has_two_secrets_at_most,
    catalog::keys_made_elsewhere_are_imported_all_or_none,
    catalog::uses_of_secrets_are_noted_without_a_revision,
    versions::who_changes_something_says_which_version,
    versions::a_call_that_is_sent_twice_is_done_once,
    versions::a_call_whose_answer_was_lost_is_told_what_it_made,
    versions::of_many_equal_calls_at_once_one_is_done_and_no_secret_is_kept,
    versions::c27_a_page_begins_where_the_last_one_ended_while_others_write,
    codes::a_policy_that_no_gateway_could_hold_is_refused,
    codes::a_plan_is_linted_against_the_routes_that_gateways_have,
    approvals::everybody_is_enforced_against_the_number_by_two_people_alone,
    approvals::what_was_asked_for_ends_unanswered_and_when_its_subject_moves,
}
