//! Every scenario on SQLite as a test of its own, and all of them on one Postgres server.

use crate::api::Api;
use crate::postgres::Postgres;
use crate::{cases, killswitch, poison, scenarios};

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
    cases::c28_one_bad_object_of_three_and_nothing_is_applied,
    cases::c29_numbers_that_do_not_read_are_named_with_their_value,
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
    poison::f33_no_poisoned_plan_comes_in_by_the_api,
    killswitch::it_is_set_for_all_told_to_gateways_and_cleared_by_its_id,
}
