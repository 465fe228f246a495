//! One line of an access log: who asked, when, for what. Nothing is kept of a line and nothing is
//! allocated for it; what cannot be read is told with its reason.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, BufRead, Read};

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::stamp::{self, Stamp};
use crate::args::LogFormat;
use crate::failure::Failure;

/// Longest line, in bytes; a longer one counts as broken.
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;
/// The last position of an nginx line that can be asked for.
const POSITION_MAX: usize = 100;
/// Where an nginx line has the request: `GET /path HTTP/1.1`.
const REQUEST_POSITION: usize = 5;

/// What a line says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    pub(super) stamp: Stamp,
    /// Empty or `-` in the log: nobody.
    pub(super) client: Option<Cow<'a, str>>,
    pub(super) route: Option<Cow<'a, str>>,
    pub(super) method: Option<Cow<'a, str>>,
}

/// Which field is which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Shape {
    /// Positions from 1.
    Positions { client: usize, time: usize, route: Option<usize> },
    /// Names.
    Names { client: String, time: String, route: String },
}

/// What the flags say about fields.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) client: Option<String>,
    pub(super) time: Option<String>,
    pub(super) route: Option<String>,
}

impl Shape {
    /// The shape of a format, with what was asked for.
    pub(super) fn new(format: LogFormat, asked: &Asked) -> Result<Shape, Failure> {
        let name =
            |given: &Option<String>, usual: &str| given.clone().unwrap_or_else(|| usual.to_owned());
        let names = |time| Shape::Names {
            client: name(&asked.client, "client"),
            time: name(&asked.time, time),
            route: name(&asked.route, "route"),
        };
        match format {
            LogFormat::Envoy => Ok(names("start_time")),
            LogFormat::Json => Ok(names("time")),
            LogFormat::Nginx => Ok(Shape::Positions {
                client: position("--key-field", asked.client.as_deref())?.unwrap_or(10),
                time: position("--time-field", asked.time.as_deref())?.unwrap_or(4),
                route: position("--route-field", asked.route.as_deref())?,
            }),
        }
    }

    /// Reads a line without its end.
    pub(super) fn read<'a>(&self, line: &'a [u8]) -> Result<Line<'a>, &'static str> {
        let text = str::from_utf8(line).map_err(|_error| "is not UTF-8")?;
        match self {
            Shape::Positions { client, time, route } => positions(text, *client, *time, *route),
            Shape::Names { client, time, route } => names(text, [client, time, route, "method"]),
        }
    }
}

fn position(flag: &str, given: Option<&str>) -> Result<Option<usize>, Failure> {
    let Some(given) = given else { return Ok(None) };
    match given.parse() {
        Ok(position) if (1..=POSITION_MAX).contains(&position) => Ok(Some(position)),
        Ok(_) | Err(_) => Err(Failure::usage(format!(
            "{flag} is a position from 1 to {POSITION_MAX} in nginx lines, not `{given}`"
        ))),
    }
}

/// The format that a first line has.
pub(super) fn format_of(line: &[u8]) -> LogFormat {
    match str::from_utf8(line).unwrap_or_default().trim_start() {
        text if !text.starts_with('{') => LogFormat::Nginx,
        text if text.contains("\"start_time\"") => LogFormat::Envoy,
        _ => LogFormat::Json,
    }
}

fn positions(
    text: &str,
    client: usize,
    time: usize,
    route: Option<usize>,
) -> Result<Line<'_>, &'static str> {
    let (mut who, mut when, mut what, mut how) = (None, None, None, None);
    let last = client.max(time).max(route.unwrap_or(0));
    let mut rest = text;
    for at in 1..=last {
        let Some((field, after)) = next_field(rest) else { break };
        rest = after;
        if at == client {
            who = Some(field);
        }
        if at == time {
            when = Some(field);
        }
        if Some(at) == route {
            what = Some(field);
        }
        if at == REQUEST_POSITION {
            how = field.split(' ').next();
        }
    }
    let stamp = stamp::parse(when.ok_or("has no field for the time")?);
    Ok(Line {
        stamp: stamp.ok_or("has no time where one should stand")?,
        client: somebody(who.ok_or("has no field for the client")?).map(Cow::Borrowed),
        route: what.and_then(somebody).map(Cow::Borrowed),
        method: how.map(Cow::Borrowed),
    })
}

fn somebody(field: &str) -> Option<&str> {
    (!matches!(field, "" | "-")).then_some(field)
}

/// The next field and what comes after it: bare, in quotes, or in brackets.
fn next_field(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start_matches([' ', '\t']);
    if let Some(inside) = text.strip_prefix('"') {
        let mut escaped = false;
        let end = inside.bytes().position(|byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        })?;
        return Some((inside.get(..end)?, inside.get(end + 1..)?));
    }
    if let Some(inside) = text.strip_prefix('[') {
        return inside.split_once(']');
    }
    if text.is_empty() {
        return None;
    }
    Some(text.split_once([' ', '\t']).unwrap_or((text, "")))
}

fn names<'a>(text: &'a str, wanted: [&str; 4]) -> Result<Line<'a>, &'static str> {
    let mut json = serde_json::Deserializer::from_str(text);
    let [client, time, route, method] =
        Picked(wanted).deserialize(&mut json).map_err(|_error| "is no JSON object")?;
    json.end().map_err(|_error| "goes on after its JSON object")?;
    let text = |value: Option<&'a RawValue>| value.and_then(text_of);
    let when = text(time).ok_or("has no field for the time")?;
    if client.is_none() {
        return Err("has no field for the client");
    }
    Ok(Line {
        stamp: stamp::parse(&when).ok_or("has no time where one should stand")?,
        client: text(client).filter(|text| somebody(text).is_some()),
        route: text(route),
        method: text(method),
    })
}

/// A text or a number as it stands; nothing for null and for what is inside of brackets.
fn text_of(value: &RawValue) -> Option<Cow<'_, str>> {
    let raw = value.get();
    match raw.as_bytes().first()? {
        b'"' if raw.contains('\\') => serde_json::from_str(raw).ok().map(Cow::Owned),
        b'"' => raw.get(1..raw.len() - 1).map(Cow::Borrowed),
        b'0'..=b'9' | b'-' => Some(Cow::Borrowed(raw)),
        _ => None,
    }
}

/// Picks the fields with these names out of an object, and skips the rest unread.
struct Picked<'n>([&'n str; 4]);

impl<'de> DeserializeSeed<'de> for Picked<'_> {
    type Value = [Option<&'de RawValue>; 4];

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Picked<'_> {
    type Value = [Option<&'de RawValue>; 4];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut picked = [None; 4];
        while let Some(place) = map.next_key_seed(Place(&self.0))? {
            match place.and_then(|place| picked.get_mut(place)) {
                Some(slot) => *slot = Some(map.next_value::<&RawValue>()?),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(picked)
    }
}

/// Reads a key as its place among the names.
struct Place<'n>(&'n [&'n str; 4]);

impl<'de> DeserializeSeed<'de> for Place<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for Place<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().position(|wanted| *wanted == name))
    }
}

/// What the next line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// It is in the buffer, without its end.
    Line,
    /// It is longer than a line may be, and skipped.
    TooLong,
    /// There is none.
    End,
}

/// Reads the next line into `buffer`, whose memory is used again.
pub(super) fn next_line(from: &mut impl BufRead, buffer: &mut Vec<u8>) -> io::Result<Next> {
    buffer.clear();
    let most = LINE_BYTES_MAX as u64 + 1;
    if from.by_ref().take(most).read_until(b'\n', buffer)? == 0 {
        return Ok(Next::End);
    }
    if buffer.last() == Some(&b'\n') {
        buffer.pop();
        buffer.pop_if(|byte| *byte == b'\r');
    } else if buffer.len() > LINE_BYTES_MAX {
        from.skip_until(b'\n')?;
        return Ok(Next::TooLong);
    }
    Ok(Next::Line)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NGINX: &str = "10.0.0.1 - - [28/Nov/2026:09:14:02 +0000] \"GET /a?b=\\\"c HTTP/1.1\" 200 \
         12 \"-\" \"agent \\\\\" \"acme\" reports";

    fn shape(format: LogFormat, client: Option<&str>, route: Option<&str>) -> Shape {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let asked = Asked { client: owned(client), time: None, route: owned(route) };
        Shape::new(format, &asked).unwrap()
    }

    #[test]
    fn a_combined_line_is_read_by_position() {
        let line = shape(LogFormat::Nginx, None, Some("11")).read(NGINX.as_bytes()).unwrap();
        assert_eq!(line.client.as_deref(), Some("acme"));
        assert_eq!(line.route.as_deref(), Some("reports"));
        assert_eq!(line.method.as_deref(), Some("GET"));
        assert_eq!(line.stamp, Stamp { us: 1_795_857_242_000_000, whole_second: true });
        let address = shape(LogFormat::Nginx, Some("1"), None).read(NGINX.as_bytes()).unwrap();
        assert_eq!(address.client.as_deref(), Some("10.0.0.1"));
        assert_eq!(
            shape(LogFormat::Nginx, Some("3"), None).read(NGINX.as_bytes()).unwrap().client,
            None
        );
    }

    #[test]
    fn json_lines_are_read_by_name_and_the_rest_is_skipped() {
        let envoy = "{\"start_time\":\"2026-11-28T09:14:02.310Z\",\"deep\":{\"client\":[1,{}]},\
                     \"x-client\":\"a\\u0063me\",\"method\":\"POST\",\"route\":null}";
        let line = shape(LogFormat::Envoy, Some("x-client"), None).read(envoy.as_bytes()).unwrap();
        assert_eq!(line.client.as_deref(), Some("acme"));
        assert_eq!((line.method.as_deref(), line.route), (Some("POST"), None));
        assert_eq!(line.stamp, Stamp { us: 1_795_857_242_310_000, whole_second: false });
        let own = "{\"time\":1795857242.5,\"client\":7}";
        let line = shape(LogFormat::Json, None, None).read(own.as_bytes()).unwrap();
        assert_eq!((line.client.as_deref(), line.stamp.us), (Some("7"), 1_795_857_242_500_000));
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        let nginx = shape(LogFormat::Nginx, None, None);
        let json = shape(LogFormat::Json, None, None);
        for (shape, line, why) in [
            (&nginx, "", "has no field for the time"),
            (&nginx, "a b c [28/Nov/2026:09:14:02 +0000] \"GET", "has no field for the client"),
            (&nginx, "a b c d e f g h i j", "has no time where one should stand"),
            (&json, "{\"time\":1795857242,\"client\":\"a\"", "is no JSON object"),
            (&json, "[]", "is no JSON object"),
            (&json, "{\"time\":1795857242}", "has no field for the client"),
            (&json, "{\"client\":\"a\",\"time\":{}}", "has no field for the time"),
            (&json, "{\"time\":1795857242,\"client\":\"a\"} x", "goes on after its JSON object"),
        ] {
            assert_eq!(shape.read(line.as_bytes()), Err(why), "{line}");
        }
        assert_eq!(nginx.read(b"\xff"), Err("is not UTF-8"));
    }

    #[test]
    fn lines_have_a_bound_and_the_next_one_is_read_again() {
        let long = "x".repeat(LINE_BYTES_MAX + 1);
        let text = format!("a\r\n{long}{long}\nb");
        let (mut from, mut buffer) = (text.as_bytes(), Vec::new());
        assert_eq!(next_line(&mut from, &mut buffer).unwrap(), Next::Line);
        assert_eq!(buffer, b"a");
        assert_eq!(next_line(&mut from, &mut buffer).unwrap(), Next::TooLong);
        assert_eq!(next_line(&mut from, &mut buffer).unwrap(), Next::Line);
        assert_eq!(buffer, b"b");
        assert_eq!(next_line(&mut from, &mut buffer).unwrap(), Next::End);
    }

    #[test]
    fn the_first_line_tells_the_format() {
        assert_eq!(format_of(NGINX.as_bytes()), LogFormat::Nginx);
        assert_eq!(format_of(b"{\"start_time\": 1}"), LogFormat::Envoy);
        assert_eq!(format_of(b"{\"time\": 1}"), LogFormat::Json);
    }

    #[test]
    fn a_position_is_a_number() {
        for wrong in ["0", "x", "101", "-1"] {
            let asked = Asked { client: Some(wrong.to_owned()), ..Asked::default() };
            let failure = Shape::new(LogFormat::Nginx, &asked).unwrap_err();
            assert!(failure.to_string().contains("--key-field"), "{failure}");
        }
    }
}
