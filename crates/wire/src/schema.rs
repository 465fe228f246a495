//! Descriptions of what writes itself by hand: hashes, as 64 hexadecimal digits.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::audit::AuditHash;
use crate::key::KeyHash;

macro_rules! hash {
    ($hash:ty) => {
        impl JsonSchema for $hash {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($hash).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "pattern": "^[0-9a-f]{64}$" })
            }
        }
    };
}

hash!(KeyHash);
hash!(AuditHash);
