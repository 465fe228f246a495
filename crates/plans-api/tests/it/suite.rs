//! Every scenario on SQLite as a test of its own, and all of them on one Postgres server.

use crate::api::Api;
use crate::postgres::Postgres;
use crate::scenarios;

macro_rules! suite {
    ($($name:ident),* $(,)?) => {
        $(
            #[tokio::test]
            async fn $name() {
                let api = Api::sqlite().await;
                scenarios::$name(&api).await;
                api.stop().await;
            }
        )*

        #[tokio::test]
        async fn all_of_it_holds_on_postgres() {
            let postgres = Postgres::start().await;
            $(
                eprintln!("on postgres: {}", stringify!($name));
                let api = Api::on(postgres.database(stringify!($name))).await;
                scenarios::$name(&api).await;
                api.stop().await;
            )*
        }
    };
}

suite! {
    c08_zero_and_negative_numbers_never_mean_unlimited,
    c28_one_bad_object_of_three_and_nothing_is_applied,
    c29_numbers_that_do_not_read_are_named_with_their_value,
    revisions_have_no_gaps_under_concurrent_writers,
    a_change_and_its_audit_row_are_one_transaction,
    a_plan_is_made_changed_and_deleted,
    a_client_is_moved_suspended_and_deleted,
    a_key_is_shown_once_found_by_its_hash_and_revoked_for_good,
    a_rule_for_all_replaces_single_ones_and_rollback_is_always_possible,
    a_waiting_gateway_is_woken_by_a_change,
    a_gateway_that_cannot_go_on_is_told_to_read_the_snapshot,
    the_bootstrap_token_makes_one_admin_and_ends,
    lists_come_in_pages_and_miss_nothing,
    what_is_known_twice_or_not_at_all_is_refused,
}
