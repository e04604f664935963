//! The JSON Schemas of the API's types, as the OpenAPI document holds them.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value};

/// Collects the schemas that a document refers to. A response is described as it is written, a request as it is read.
#[derive(Debug)]
pub struct Schemas {
    responses: SchemaGenerator,
    requests: SchemaGenerator,
}

impl Default for Schemas {
    fn default() -> Self {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        });
        Self {
            responses: settings.clone().for_serialize().into_generator(),
            requests: settings.for_deserialize().into_generator(),
        }
    }
}

impl Schemas {
    /// The schema of a response; definitions it refers to are collected.
    pub fn response<T: JsonSchema>(&mut self) -> Value {
        simplified(self.responses.subschema_for::<T>().to_value())
    }

    /// The schema of a request's body; definitions it refers to are collected.
    pub fn request<T: JsonSchema>(&mut self) -> Value {
        simplified(self.requests.subschema_for::<T>().to_value())
    }

    /// All definitions collected, by name.
    #[must_use]
    pub fn definitions(mut self) -> Map<String, Value> {
        let mut all = self.responses.take_definitions(true);
        all.extend(self.requests.take_definitions(true));
        let all = all.into_iter();
        all.map(|(name, schema)| (name, simplified(schema)))
            .collect()
    }
}

/// A schema as client generators understand it best: no formats, an `enum` instead of a choice of constants, and no null
/// where a field is omitted instead.
fn simplified(mut schema: Value) -> Value {
    let Value::Object(fields) = &mut schema else {
        return schema;
    };
    if let Some(choices) = fields.remove("anyOf") {
        fields.insert("oneOf".to_owned(), choices);
    }
    fields.remove("default");
    // No number of the API is negative.
    if let Some(format) = fields.remove("format") {
        fields.remove("maximum");
        if format == "double" {
            fields.insert("minimum".to_owned(), 0.into());
        }
    }
    constants_as_enum(fields);
    for name in ["items", "additionalProperties"] {
        if let Some(inner) = fields.get_mut(name) {
            *inner = simplified(inner.take());
        }
    }
    if let Some(Value::Array(choices)) = fields.get_mut("oneOf") {
        for choice in choices {
            *choice = simplified(choice.take());
        }
    }
    let required = fields.get("required").cloned().unwrap_or_default();
    let is_required = |name: &str| {
        required
            .as_array()
            .is_some_and(|all| all.contains(&name.into()))
    };
    if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
        for (name, property) in properties {
            *property = simplified(property.take());
            if !is_required(name) {
                without_null(property);
            }
        }
        fields.insert("additionalProperties".to_owned(), false.into());
    }
    schema
}

/// Replaces `oneOf` constants by an `enum`; their meanings go into the description.
fn constants_as_enum(fields: &mut Map<String, Value>) {
    let Some(choices) = fields.get("oneOf").and_then(Value::as_array) else {
        return;
    };
    let words: Option<Vec<_>> = choices.iter().map(|it| it.get("const").cloned()).collect();
    let Some(words) = words else { return };
    let meanings = choices.iter().map(|choice| {
        let word = choice["const"].as_str().unwrap_or_default();
        format!(
            "{word}: {}",
            choice["description"].as_str().unwrap_or_default()
        )
    });
    let meanings = meanings.collect::<Vec<_>>().join(" ");
    let description = match fields.get("description").and_then(Value::as_str) {
        Some(text) => format!("{text} {meanings}"),
        None => meanings,
    };
    fields.remove("oneOf");
    fields.insert("type".to_owned(), "string".into());
    fields.insert("enum".to_owned(), words.into());
    fields.insert("description".to_owned(), description.into());
}

/// Removes null from an optional field, except where `x-null` says that null has a meaning.
fn without_null(property: &mut Value) {
    let Value::Object(fields) = property else {
        return;
    };
    if fields.remove("x-null").is_some() {
        return;
    }
    if let Some(Value::Array(types)) = fields.get_mut("type") {
        types.retain(|it| it != "null");
        if let [only] = &types[..] {
            let only = only.clone();
            fields.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(words)) = fields.get_mut("enum") {
        words.retain(|it| !it.is_null());
    }
    if let Some(Value::Array(choices)) = fields.get_mut("oneOf") {
        choices.retain(|it| it["type"] != "null");
        if let [Value::Object(only)] = &mut choices[..] {
            let mut only = std::mem::take(only);
            fields.remove("oneOf");
            if let (Some(Value::String(outer)), Some(Value::String(inner))) =
                (fields.get("description"), only.get_mut("description"))
            {
                inner.insert_str(0, &format!("{outer} "));
            }
            fields.append(&mut only);
        }
    }
}
