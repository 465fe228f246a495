//! JSON that must be understood to its last field: unknown and repeated names are mistakes, and all
//! mistakes are told at once, each with its place.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// Mistakes that are told; beyond it one line says that there are more.
const TOLD_MAX: usize = 50;

/// Everything that is wrong with a text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mistakes(Vec<String>);

impl Mistakes {
    /// One line each.
    pub fn lines(&self) -> &[String] {
        &self.0
    }

    pub(crate) fn add(&mut self, place: &str, what: impl fmt::Display) {
        if self.0.len() < TOLD_MAX {
            self.0.push(if place.is_empty() {
                what.to_string()
            } else {
                format!("{place}: {what}")
            });
        } else if self.0.len() == TOLD_MAX {
            self.0.push("and more".to_owned());
        }
    }

    pub(crate) fn none_or_err<T>(self, good: T) -> Result<T, Mistakes> {
        if self.0.is_empty() { Ok(good) } else { Err(self) }
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for Mistakes {}

/// Any JSON, with the fields of objects as they were written.
#[derive(Debug)]
pub(crate) enum Tree {
    Fields(Vec<(String, Tree)>),
    Items(Vec<Tree>),
    Leaf(Value),
}

impl Tree {
    pub(crate) fn parse(text: &str) -> Result<Tree, Mistakes> {
        serde_json::from_str(text).map_err(|error| Mistakes(vec![format!("not JSON: {error}")]))
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tree, D::Error> {
        struct AnyJson;

        impl<'de> Visitor<'de> for AnyJson {
            type Value = Tree;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Tree::Fields(fields))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Tree, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Tree::Items(items))
            }

            fn visit_str<E>(self, text: &str) -> Result<Tree, E> {
                Ok(Tree::Leaf(text.into()))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Tree, E> {
                Ok(Tree::Leaf(number.into()))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Tree, E> {
                Ok(Tree::Leaf(number.into()))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Tree, E> {
                Ok(Tree::Leaf(number.into()))
            }

            fn visit_bool<E>(self, truth: bool) -> Result<Tree, E> {
                Ok(Tree::Leaf(truth.into()))
            }

            fn visit_unit<E>(self) -> Result<Tree, E> {
                Ok(Tree::Leaf(Value::Null))
            }
        }

        deserializer.deserialize_any(AnyJson)
    }
}

/// An object whose fields are taken one by one; what is left at the end is unknown.
pub(crate) struct Fields<'m> {
    place: String,
    fields: Vec<(String, Tree)>,
    mistakes: &'m mut Mistakes,
}

impl<'m> Fields<'m> {
    /// `None`, and a mistake, if it is no object.
    pub(crate) fn of(
        tree: Tree,
        place: impl Into<String>,
        mistakes: &'m mut Mistakes,
    ) -> Option<Fields<'m>> {
        let place = place.into();
        match tree {
            Tree::Fields(fields) => {
                let mut seen: Vec<(String, Tree)> = Vec::new();
                for (name, value) in fields {
                    if seen.iter().any(|(other, _)| *other == name) {
                        mistakes.add(&place, format_args!("`{name}` stands here twice"));
                    } else {
                        seen.push((name, value));
                    }
                }
                Some(Fields { place, fields: seen, mistakes })
            }
            Tree::Items(_) | Tree::Leaf(_) => {
                mistakes.add(&place, "must be an object");
                None
            }
        }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|(field, _)| field == name)
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<Tree> {
        let at = self.fields.iter().position(|(field, _)| field == name)?;
        Some(self.fields.remove(at).1)
    }

    pub(crate) fn wrong(&mut self, name: &str, what: impl fmt::Display) {
        let place = self.place_of(name);
        self.mistakes.add(&place, what);
    }

    pub(crate) fn text(&mut self, name: &str) -> Option<String> {
        match self.take(name)? {
            Tree::Leaf(Value::String(text)) => Some(text),
            Tree::Leaf(_) | Tree::Fields(_) | Tree::Items(_) => {
                self.wrong(name, "must be a text");
                None
            }
        }
    }

    pub(crate) fn whole(&mut self, name: &str, least: u64, most: u64) -> Option<u64> {
        match self.take(name)? {
            Tree::Leaf(Value::Number(number))
                if number.as_u64().is_some_and(|number| (least..=most).contains(&number)) =>
            {
                number.as_u64()
            }
            Tree::Leaf(_) | Tree::Fields(_) | Tree::Items(_) => {
                self.wrong(name, format_args!("must be a whole number from {least} to {most}"));
                None
            }
        }
    }

    pub(crate) fn number(&mut self, name: &str, most: f64) -> Option<f64> {
        match self.take(name)? {
            Tree::Leaf(Value::Number(number))
                if number.as_f64().is_some_and(|number| (0.0..=most).contains(&number)) =>
            {
                number.as_f64()
            }
            Tree::Leaf(_) | Tree::Fields(_) | Tree::Items(_) => {
                self.wrong(name, format_args!("must be a number from 0 to {most}"));
                None
            }
        }
    }

    /// The items of a list with the place of each, and the mistakes to go on with.
    pub(crate) fn items(&mut self, name: &str) -> Option<(Vec<(String, Tree)>, &mut Mistakes)> {
        let place = self.place_of(name);
        match self.take(name)? {
            Tree::Items(items) => {
                let placed = items.into_iter().enumerate();
                let placed = placed.map(|(n, item)| (format!("{place}[{n}]"), item)).collect();
                Some((placed, self.mistakes))
            }
            Tree::Leaf(_) | Tree::Fields(_) => {
                self.mistakes.add(&place, "must be a list");
                None
            }
        }
    }

    /// Fields that nobody has taken are mistakes.
    pub(crate) fn end(self) {
        for (name, _) in &self.fields {
            self.mistakes.add(&self.place, format_args!("`{name}` is unknown here"));
        }
    }

    fn place_of(&self, name: &str) -> String {
        if self.place.is_empty() { name.to_owned() } else { format!("{}.{name}", self.place) }
    }
}
