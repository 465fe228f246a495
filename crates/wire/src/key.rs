//! API keys and operator tokens: how they are spelled, made, recognised and hashed.
//!
//! An API key is `weir_<env>_<id>_<secret><tag>`: 10 characters of id (shown in lists), 27 of
//! secret (160 bits), 7 of tag, in base62. The tag is a keyed hash of all before it, so a typing
//! error or an invented key costs one hash and no look-up. Stored is only a keyed hash. A dump of
//! any database or disk holds no usable key.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

/// Longest API key that anybody may show, in bytes; also imported ones.
pub const KEY_BYTES_MAX: usize = 256;

const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const ID_CHARS: usize = 10;
const SECRET_CHARS: usize = 27;
const TAG_CHARS: usize = 7;
const TAG_BITS: u64 = 40;

/// Why no randomness or no pepper is to be had.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The system's random numbers failed.
    #[error("the system gives no random numbers")]
    NoRandom(#[source] getrandom::Error),
    /// A pepper is 32 bytes.
    #[error("a pepper is a file of 32 bytes, not {0}")]
    PepperLength(usize),
}

/// 32 bytes that plans-api makes at its first start and gateways share: without them no stored
/// hash can be tried and no key can be invented.
#[derive(Clone)]
pub struct Pepper([u8; 32]);

impl Pepper {
    /// From a file's content.
    pub fn from_bytes(bytes: &[u8]) -> Result<Pepper, KeyError> {
        let length = bytes.len();
        Ok(Pepper(bytes.try_into().map_err(|_not_32| KeyError::PepperLength(length))?))
    }

    /// A new one.
    pub fn generate() -> Result<Pepper, KeyError> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(KeyError::NoRandom)?;
        Ok(Pepper(bytes))
    }

    /// For writing the file.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Tells peppers apart without telling them: 16 hex digits.
    pub fn id(&self) -> String {
        self.keyed("id", b"").to_hex().chars().take(16).collect()
    }

    fn keyed(&self, purpose: &str, data: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(purpose.as_bytes()).update(data);
        hasher.finalize()
    }
}

impl fmt::Debug for Pepper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pepper({})", self.id())
    }
}

/// What a key is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum KeyEnv {
    /// Real traffic.
    #[default]
    Live,
    /// Trying things out.
    Test,
}

impl KeyEnv {
    /// As it stands in a key.
    pub const fn name(self) -> &'static str {
        match self {
            KeyEnv::Live => "live",
            KeyEnv::Test => "test",
        }
    }
}

/// A new API key. The text exists only here and in the caller's hands.
pub struct ApiKey {
    /// Its public id.
    pub id: String,
    /// The whole key, to be shown once.
    pub text: String,
    /// What is stored.
    pub hash: KeyHash,
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl ApiKey {
    /// A new key of 160 random bits.
    pub fn generate(env: KeyEnv, pepper: &Pepper) -> Result<ApiKey, KeyError> {
        ApiKey::generate_for(ApiKey::new_id()?, env, pepper)
    }

    /// A new public id.
    pub fn new_id() -> Result<String, KeyError> {
        random_base62(ID_CHARS)
    }

    /// Another secret for the key with this public id.
    pub fn generate_for(id: String, env: KeyEnv, pepper: &Pepper) -> Result<ApiKey, KeyError> {
        let body = format!("weir_{}_{id}_{}", env.name(), random_base62(SECRET_CHARS)?);
        let text = format!("{body}{}", tag(&body, pepper));
        Ok(ApiKey { hash: KeyHash::of_key(&text, pepper), id, text })
    }
}

/// What a presented key looks like before anybody is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyShape {
    /// Ours, with a right tag.
    Ours,
    /// Spelled like ours, but invented or mistyped: nobody needs to be asked.
    Forged,
    /// Some other key: it may have been imported.
    Foreign,
}

/// Judges a presented key by its spelling and tag.
pub fn shape(presented: &str, pepper: &Pepper) -> KeyShape {
    let spelled = presented.strip_prefix("weir_live_").or(presented.strip_prefix("weir_test_"));
    if spelled.is_none() {
        return KeyShape::Foreign;
    }
    let split =
        presented.len().checked_sub(TAG_CHARS).and_then(|at| presented.split_at_checked(at));
    let Some((body, given)) = split else { return KeyShape::Forged };
    if bool::from(tag(body, pepper).as_bytes().ct_eq(given.as_bytes())) {
        KeyShape::Ours
    } else {
        KeyShape::Forged
    }
}

fn tag(body: &str, pepper: &Pepper) -> String {
    let hash = pepper.keyed("tag", body.as_bytes());
    let mut first = [0; 8];
    first.iter_mut().zip(hash.as_bytes()).for_each(|(to, from)| *to = *from);
    let mut number = u64::from_le_bytes(first) & ((1 << TAG_BITS) - 1);
    let mut text = [b'0'; TAG_CHARS];
    for place in text.iter_mut().rev() {
        *place = base62(number % 62);
        number /= 62;
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn base62(digit: u64) -> u8 {
    usize::try_from(digit).ok().and_then(|index| BASE62.get(index)).copied().unwrap_or(b'0')
}

/// Uniform base62 characters from the system's random numbers.
fn random_base62(chars: usize) -> Result<String, KeyError> {
    let mut text = String::with_capacity(chars);
    while text.len() < chars {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(KeyError::NoRandom)?;
        let uniform = bytes.iter().filter(|byte| **byte < 248).map(|byte| u64::from(*byte) % 62);
        text.extend(uniform.map(|digit| char::from(base62(digit))).take(chars - text.len()));
    }
    Ok(text)
}

/// The stored form of a key: 32 bytes, 64 hex digits in bodies. Compared in constant time.
#[derive(Clone, Copy)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// Of a presented key.
    pub fn of_key(text: &str, pepper: &Pepper) -> KeyHash {
        KeyHash(*pepper.keyed("key", text.as_bytes()).as_bytes())
    }

    /// Of an imported key, of which only its SHA-256 is known here.
    pub fn of_imported(sha256: &[u8; 32], pepper: &Pepper) -> KeyHash {
        KeyHash(*pepper.keyed("sha256", sha256).as_bytes())
    }

    /// What a presented key is stored as if it was imported.
    pub fn of_key_if_imported(text: &str, pepper: &Pepper) -> KeyHash {
        KeyHash::of_imported(&Sha256::digest(text.as_bytes()).into(), pepper)
    }

    /// From 32 stored bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> KeyHash {
        KeyHash(bytes)
    }

    /// The 32 bytes.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// 64 lower-case hex digits.
    pub fn to_hex(&self) -> String {
        data_encoding::HEXLOWER.encode(&self.0)
    }

    /// From 64 hex digits.
    pub fn from_hex(text: &str) -> Option<KeyHash> {
        let bytes = data_encoding::HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?;
        bytes.try_into().ok().map(KeyHash)
    }
}

impl PartialEq for KeyHash {
    fn eq(&self, other: &KeyHash) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for KeyHash {}

impl std::hash::Hash for KeyHash {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(…)")
    }
}

impl Serialize for KeyHash {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.to_hex())
    }
}

impl<'de> Deserialize<'de> for KeyHash {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<KeyHash, D::Error> {
        let text = String::deserialize(from)?;
        KeyHash::from_hex(&text)
            .ok_or_else(|| serde::de::Error::custom("a hash is 64 hexadecimal digits"))
    }
}

/// A new operator token: `weiro_<id>_<secret>`.
pub struct OperatorToken {
    /// Its public id.
    pub id: String,
    /// The whole token, to be shown once.
    pub text: String,
}

impl fmt::Debug for OperatorToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperatorToken").field("id", &self.id).finish_non_exhaustive()
    }
}

impl OperatorToken {
    /// A new token of 160 random bits.
    pub fn generate() -> Result<OperatorToken, KeyError> {
        let id = random_base62(ID_CHARS)?;
        let text = format!("weiro_{id}_{}", random_base62(SECRET_CHARS)?);
        Ok(OperatorToken { id, text })
    }
}

/// The stored form of an operator token. It needs no pepper: the secret has 160 bits.
pub fn token_hash(text: &str) -> KeyHash {
    let mut hasher = blake3::Hasher::new_derive_key("weir operator token 1");
    hasher.update(text.as_bytes());
    KeyHash(*hasher.finalize().as_bytes())
}
