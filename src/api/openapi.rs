//! The OpenAPI document: one entry for each endpoint, its schemas from the types of the API.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::ErrorBody;
use super::process::{ReloadFailure, ReloadReport, Status, Store};
use super::upstreams::{
    Backend, BackendChange, BreakerChange, DegradeChange, DegradeGroup, LocationBreaker, Upstream,
};
use super::zones::{
    ExplainRequest, Explanation, KeyActionRequest, KeyActions, KeyReset, KeySort, KeyState,
    Refusals, TopKey, Zone, ZoneChange, ZoneDetail,
};

/// One method of one path.
struct Endpoint {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    privilege: Privilege,
    query: fn() -> Vec<Value>,
    body: Option<RequestBody>,
    responses: &'static [Response],
}

/// What a caller needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Privilege {
    Look,
    Change,
}

/// The JSON that a request carries.
#[derive(Clone, Copy)]
struct RequestBody {
    required: bool,
    schema: SchemaOf,
}

/// A response by its status.
#[derive(Clone, Copy)]
struct Response {
    status: &'static str,
    description: &'static str,
    content_type: &'static str,
    schema: SchemaOf,
}

/// A type's schema, its definitions left with the generators.
type SchemaOf = fn(&mut Generators) -> Value;

/// The OpenAPI document.
#[must_use]
pub fn document() -> Value {
    let mut generators = Generators::new();
    let mut paths = Map::new();
    for endpoint in ENDPOINTS {
        let item = paths.entry(endpoint.path).or_insert_with(|| {
            let parameters: Vec<_> = path_parameters(endpoint.path).collect();
            match parameters.is_empty() {
                true => json!({}),
                false => json!({ "parameters": parameters }),
            }
        });
        item[endpoint.method] = endpoint.operation(&mut generators);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "weir",
            "version": "1",
            "description": "The API of weir's admin listener. Looking is free on the machine itself and takes the token \
                            elsewhere; changing takes it everywhere.",
            "license": { "name": LICENSE, "identifier": LICENSE },
        },
        "servers": [{ "url": "http://127.0.0.1:9900" }],
        "security": [{}, { "token": [] }],
        "paths": paths,
        "components": {
            "schemas": generators.definitions(),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "`admin.token` of the configuration.",
                },
            },
        },
    })
}

impl Endpoint {
    const fn get(
        path: &'static str,
        summary: &'static str,
        responses: &'static [Response],
    ) -> Self {
        Self {
            method: "get",
            path,
            summary,
            privilege: Privilege::Look,
            query: Vec::new,
            body: None,
            responses,
        }
    }

    const fn change(
        method: &'static str,
        path: &'static str,
        summary: &'static str,
        responses: &'static [Response],
    ) -> Self {
        Self {
            method,
            privilege: Privilege::Change,
            ..Self::get(path, summary, responses)
        }
    }

    const fn with_query(self, query: fn() -> Vec<Value>) -> Self {
        Self { query, ..self }
    }

    const fn with_body(self, required: bool, schema: SchemaOf) -> Self {
        let body = Some(RequestBody { required, schema });
        Self { body, ..self }
    }

    fn operation(&self, generators: &mut Generators) -> Value {
        let access = match self.privilege {
            Privilege::Look => [
                error("401", "From elsewhere, or with a wrong token."),
                error("403", "From elsewhere, and no token is configured."),
            ],
            Privilege::Change => [
                error("401", "Without the token, or with a wrong one."),
                error(
                    "403",
                    "No token is configured, or a page of another origin asks.",
                ),
            ],
        };
        let mut responses = Map::new();
        for response in self.responses.iter().chain(&access) {
            let schema = (response.schema)(generators);
            let content = json!({ response.content_type: { "schema": schema } });
            let described = json!({ "description": response.description, "content": content });
            responses.insert(response.status.to_owned(), described);
        }
        let mut operation = json!({ "summary": self.summary, "responses": responses });
        if self.privilege == Privilege::Change {
            operation["security"] = json!([{ "token": [] }]);
        }
        let query = (self.query)();
        if !query.is_empty() {
            operation["parameters"] = query.into();
        }
        if let Some(body) = self.body {
            let schema = (body.schema)(generators);
            let content = json!({ JSON: { "schema": schema } });
            operation["requestBody"] = json!({ "required": body.required, "content": content });
        }
        operation
    }
}

const fn ok(schema: SchemaOf) -> Response {
    Response {
        status: "200",
        description: "done",
        content_type: JSON,
        schema,
    }
}

const fn text(status: &'static str, description: &'static str) -> Response {
    Response {
        status,
        description,
        content_type: "text/plain",
        schema: string,
    }
}

const fn error(status: &'static str, description: &'static str) -> Response {
    Response {
        status,
        description,
        content_type: JSON,
        schema: reply::<ErrorBody>,
    }
}

/// What there is in a path to fill in.
fn path_parameters(path: &'static str) -> impl Iterator<Item = Value> {
    let named = path.split('/').filter_map(|segment| {
        let name = segment.strip_prefix('{')?.strip_suffix('}')?;
        let (_, description) = PATH_PARAMETERS.iter().find(|(known, _)| *known == name)?;
        Some((name, description))
    });
    named.map(|(name, description)| {
        json!({
            "name": name, "in": "path", "required": true, "description": description,
            "schema": { "type": "string" },
        })
    })
}

fn query_parameter(name: &str, description: &str, schema: Value) -> Value {
    json!({ "name": name, "in": "query", "required": false, "description": description, "schema": schema })
}

fn keys_query() -> Vec<Value> {
    let sort = "By what; the most first. now: refused a second of late, of equals delayed, of equals asked for. Default: refuse.";
    let words = KeySort::ALL.map(KeySort::as_str);
    vec![
        query_parameter("sort", sort, json!({ "type": "string", "enum": words })),
        query_parameter("limit", "How many at most. Default: 20.", count()),
    ]
}

fn refusals_query() -> Vec<Value> {
    let id = json!({ "type": "integer", "minimum": 0 });
    vec![
        query_parameter(
            "limit",
            "How many at most, the latest. Default: 100.",
            count(),
        ),
        query_parameter("after", "Only those after the one with this id.", id),
    ]
}

fn count() -> Value {
    json!({ "type": "integer", "minimum": 1, "maximum": 1000 })
}

const JSON: &str = "application/json";
const LICENSE: &str = "MIT OR Apache-2.0";

const BAD_BODY: Response = error(
    "400",
    "The body is no JSON, too large, or says what cannot be.",
);
const BAD_PARAMETER: Response = error("400", "A parameter makes no sense.");
const MISSING: Response = error("404", "There is no such thing.");
const CONFLICT: Response = error("409", "Not with what there is.");

const PATH_PARAMETERS: &[(&str, &str)] = &[
    ("group", "The group's name."),
    ("key", "The key as it is shown, percent-encoded."),
    ("server", "The server's address as it is shown."),
    ("upstream", "The upstream's name."),
    ("zone", "The zone's name."),
];

const MARKED: &[Response] = &[ok(reply::<KeyActions>), BAD_BODY, MISSING, CONFLICT];
const UNMARKED: &[Response] = &[ok(reply::<KeyActions>), BAD_BODY, MISSING];
const TAKE_BACK: &str = "Take that back";

const ENDPOINTS: &[Endpoint] = &[
    Endpoint::get("/healthz", "Whether it lives", &[text("200", "It does.")]),
    Endpoint::get(
        "/readyz",
        "Whether traffic should be sent here",
        &[
            text("200", "It should."),
            text("503", "Not yet, or no more."),
        ],
    ),
    Endpoint::get(
        "/metrics",
        "Every metric, for Prometheus",
        &[text("200", "The page.")],
    ),
    Endpoint::get("/api/openapi.json", "This description", &[ok(object)]),
    Endpoint::change(
        "post",
        "/api/reload",
        "Read the configuration again",
        &[
            Response {
                description: "It is in force.",
                ..ok(reply::<ReloadReport>)
            },
            error("409", "It is stopping."),
            Response {
                schema: reply::<ReloadFailure>,
                ..error(
                    "422",
                    "Something is wrong with it, and everything is as it was.",
                )
            },
        ],
    ),
    Endpoint::get(
        "/api/status",
        "How it is, in one look",
        &[ok(reply::<Status>)],
    ),
    Endpoint::get(
        "/api/config",
        "The running configuration, secrets hidden",
        &[ok(config)],
    ),
    Endpoint::get(
        "/api/zones",
        "All zones: those for requests, then those for connections",
        &[ok(reply::<Vec<Zone>>)],
    ),
    Endpoint::get(
        "/api/zones/{zone}",
        "One zone, the rules that use it, and its marked keys",
        &[ok(reply::<ZoneDetail>), MISSING],
    ),
    Endpoint::change(
        "patch",
        "/api/zones/{zone}",
        "Change rate, limit or burst until the next reload",
        &[ok(reply::<ZoneDetail>), BAD_BODY, MISSING],
    )
    .with_body(true, request::<ZoneChange>),
    Endpoint::change(
        "delete",
        "/api/zones/{zone}/override",
        "Back to what the file says",
        &[ok(reply::<ZoneDetail>), BAD_BODY, MISSING],
    ),
    Endpoint::get(
        "/api/zones/{zone}/keys",
        "Its busiest or most refused keys",
        &[ok(reply::<Vec<TopKey>>), BAD_PARAMETER, MISSING],
    )
    .with_query(keys_query),
    Endpoint::get(
        "/api/zones/{zone}/keys/{key}",
        "Where one key stands",
        &[
            ok(reply::<KeyState>),
            error("400", "Not a key of this zone."),
            MISSING,
        ],
    ),
    Endpoint::change(
        "delete",
        "/api/zones/{zone}/keys/{key}",
        "Forget a key: its count and its penalty",
        &[
            ok(reply::<KeyReset>),
            BAD_BODY,
            MISSING,
            CONFLICT,
            error("503", "The zone's store is away."),
        ],
    ),
    Endpoint::change(
        "put",
        "/api/zones/{zone}/keys/{key}/block",
        "Refuse every request of a key for a time",
        MARKED,
    )
    .with_body(false, request::<KeyActionRequest>),
    Endpoint::change(
        "delete",
        "/api/zones/{zone}/keys/{key}/block",
        TAKE_BACK,
        UNMARKED,
    ),
    Endpoint::change(
        "put",
        "/api/zones/{zone}/keys/{key}/exempt",
        "Do not limit a key for a time",
        MARKED,
    )
    .with_body(false, request::<KeyActionRequest>),
    Endpoint::change(
        "delete",
        "/api/zones/{zone}/keys/{key}/exempt",
        TAKE_BACK,
        UNMARKED,
    ),
    Endpoint::change(
        "put",
        "/api/zones/{zone}/keys/{key}/grant",
        "Let a key have so many requests more",
        MARKED,
    )
    .with_body(true, request::<KeyActionRequest>),
    Endpoint::change(
        "delete",
        "/api/zones/{zone}/keys/{key}/grant",
        TAKE_BACK,
        UNMARKED,
    ),
    // It changes nothing: a request with a body that only looks.
    Endpoint {
        method: "post",
        ..Endpoint::get(
            "/api/explain",
            "What would happen to this request, rule by rule; nothing is charged",
            &[
                ok(reply::<Explanation>),
                error("400", "The body is no JSON, too large, or no request."),
            ],
        )
    }
    .with_body(false, request::<ExplainRequest>),
    Endpoint::get(
        "/api/upstreams",
        "All upstreams and their servers",
        &[ok(reply::<Vec<Upstream>>)],
    ),
    Endpoint::change(
        "patch",
        "/api/upstreams/{upstream}/servers/{server}",
        "Drain, enable or disable a server, or force its breaker",
        &[ok(reply::<Backend>), BAD_BODY, MISSING, CONFLICT],
    )
    .with_body(true, request::<BackendChange>),
    Endpoint::get(
        "/api/breakers",
        "The breakers of locations",
        &[ok(reply::<Vec<LocationBreaker>>)],
    ),
    Endpoint::change(
        "patch",
        "/api/breakers",
        "Force one, or let it judge again",
        &[ok(reply::<LocationBreaker>), BAD_BODY, MISSING],
    )
    .with_body(true, request::<BreakerChange>),
    Endpoint::get(
        "/api/groups",
        "Groups of locations that are degraded together",
        &[ok(reply::<Vec<DegradeGroup>>)],
    ),
    Endpoint::change(
        "patch",
        "/api/groups/{group}",
        "Switch a group",
        &[ok(reply::<DegradeGroup>), BAD_BODY, MISSING],
    )
    .with_body(true, request::<DegradeChange>),
    Endpoint::get(
        "/api/store",
        "Stores that are shared with other gateways",
        &[ok(reply::<Vec<Store>>)],
    ),
    Endpoint::get(
        "/api/refusals",
        "The last refusals, with the reason for each",
        &[ok(reply::<Refusals>), BAD_PARAMETER],
    )
    .with_query(refusals_query),
    Endpoint::get(
        "/api/refusals/stream",
        "The same as they come, as server-sent events: `refusal` with one of them, `skipped` with how many were not recorded",
        &[
            Response {
                content_type: "text/event-stream",
                ..text("200", "The stream.")
            },
            error("503", "Enough listen already."),
        ],
    ),
];

/// What a response may hold is described by what is written, what a request may by what is read.
struct Generators {
    replies: SchemaGenerator,
    requests: SchemaGenerator,
    has_config: bool,
}

fn reply<T: JsonSchema>(generators: &mut Generators) -> Value {
    plain(generators.replies.subschema_for::<T>().to_value())
}

fn request<T: JsonSchema>(generators: &mut Generators) -> Value {
    plain(generators.requests.subschema_for::<T>().to_value())
}

fn string(_: &mut Generators) -> Value {
    json!({ "type": "string" })
}

fn object(_: &mut Generators) -> Value {
    json!({ "type": "object" })
}

/// The configuration is described by `weir schema`.
fn config(generators: &mut Generators) -> Value {
    generators.has_config = true;
    json!({ "$ref": "#/components/schemas/Config" })
}

impl Generators {
    fn new() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = "/components/schemas".into();
                settings.meta_schema = None;
            })
        };
        Self {
            replies: settings().for_serialize().into_generator(),
            requests: settings().for_deserialize().into_generator(),
            has_config: false,
        }
    }

    fn definitions(mut self) -> Map<String, Value> {
        let mut all = self.replies.take_definitions(true);
        all.extend(self.requests.take_definitions(true));
        let mut all: Map<_, _> = all
            .into_iter()
            .map(|(name, schema)| (name, plain(schema)))
            .collect();
        if self.has_config {
            let description = "The file as it was read, environment and includes filled in, secrets replaced by `***`.";
            let config = json!({ "type": "object", "description": description });
            all.insert("Config".to_owned(), config);
        }
        all
    }
}

/// A schema in the words that generators of clients understand best: no formats, one list of words instead of a choice of
/// constants, and no null where a field is left out instead.
fn plain(mut schema: Value) -> Value {
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
    one_list_of_words(fields);
    for name in ["items", "additionalProperties"] {
        if let Some(inner) = fields.get_mut(name) {
            *inner = plain(inner.take());
        }
    }
    for choice in fields
        .get_mut("oneOf")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        *choice = plain(choice.take());
    }
    let required = fields.get("required").cloned().unwrap_or_default();
    let is_required = |name: &str| {
        required
            .as_array()
            .is_some_and(|all| all.iter().any(|it| it == name))
    };
    if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
        for (name, property) in properties {
            *property = plain(property.take());
            if !is_required(name) {
                without_null(property);
            }
        }
        fields.insert("additionalProperties".to_owned(), false.into());
    }
    schema
}

/// `oneOf` constants as `enum`, what each means in the description.
fn one_list_of_words(fields: &mut Map<String, Value>) {
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

/// A field that is left out where there is none; one that says `x-null` may be null, which then means something.
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
            let descriptions = [fields.remove("description"), only.remove("description")];
            let descriptions: Vec<_> = descriptions
                .iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            if !descriptions.is_empty() {
                fields.insert("description".to_owned(), descriptions.join(" ").into());
            }
            fields.append(&mut only);
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn the_file_is_the_document() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/conf/openapi.json");
        let expected = format!("{:#}\n", document());
        if std::fs::read_to_string(path).unwrap_or_default() != expected {
            std::fs::write(path, expected).unwrap();
            panic!("{path} was not the document of the types; it has been written anew: commit it");
        }
    }

    #[test]
    fn every_parameter_of_a_path_is_described() {
        for endpoint in ENDPOINTS {
            let names = endpoint.path.matches('{').count();
            let path = endpoint.path;
            assert_eq!(path_parameters(path).count(), names, "{path}");
        }
    }
}
