//! The endpoints of the admin listener: what one declares, which one a path names, and the OpenAPI document of all.
//!
//! An [`Endpoint`] is declared once, in the file of its handler; dispatch, 404, 405 with `Allow` and the document follow.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{HeaderMap, Method, Request, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

use super::access::Privilege;
use super::reload::ReloadHandle;
use super::response::{self, ApiError, ApiResponse};
use crate::api::{ErrorBody, Schemas};
use crate::clock::{Clock, Millis};
use crate::proxy::Generation;
use crate::telemetry::LogWriter;
use crate::text::percent_decode;

/// What endpoints show and change.
#[derive(Debug)]
pub(super) struct AdminState {
    pub(super) generation: Arc<ArcSwap<Generation>>,
    pub(super) ready: AtomicBool,
    pub(super) writer: LogWriter,
    pub(super) reloads: Arc<ReloadHandle>,
    pub(super) clock: Clock,
    /// Places for clients that follow the stream of refusals.
    pub(super) streams: Arc<Semaphore>,
}

/// A request that was admitted.
#[derive(Debug)]
pub(super) struct ApiCall {
    pub(super) state: Arc<AdminState>,
    pub(super) generation: Arc<Generation>,
    pub(super) now: Millis,
    pub(super) path: PathArgs,
    pub(super) query: Option<String>,
    pub(super) body: Vec<u8>,
}

/// The parameters in a path, with their names, percent-decoded.
pub(super) type PathArgs = Vec<(&'static str, String)>;

impl ApiCall {
    /// The parameter `{name}` of the path.
    pub(super) fn arg(&self, name: &str) -> &str {
        let mut args = self.path.iter();
        args.find(|(known, _)| *known == name)
            .map_or("", |(_, value)| value)
    }

    /// A parameter of the query, percent-decoded.
    pub(super) fn query(&self, name: &str) -> Option<String> {
        query_value(self.query.as_deref()?, name)
    }

    /// The parameter `limit` of the query.
    pub(super) fn limit(&self, default: usize) -> Result<usize, ApiError> {
        match self.query("limit").map(|text| text.parse()) {
            None => Ok(default),
            Some(Ok(number @ 1..=1000)) => Ok(number),
            Some(_) => Err(ApiError::bad("`limit` is a number from 1 to 1000")),
        }
    }

    /// The body as JSON; an empty one is `{}`.
    fn json<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        let body = match &self.body[..] {
            [] => b"{}",
            body => body,
        };
        serde_json::from_slice(body).map_err(|error| match error.classify() {
            serde_json::error::Category::Data => ApiError::bad(format!("the body: {error}")),
            _ => ApiError::bad(format!("the body is not JSON: {error}")),
        })
    }
}

fn query_value(query: &str, name: &str) -> Option<String> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(key, _)| *key == name)?;
    percent_decode(&value.replace('+', " "))
}

/// Reads the body of a request.
pub(super) async fn read_body(request: Request<Incoming>) -> Result<Vec<u8>, ApiError> {
    let limited = Limited::new(request.into_body(), BODY_MAX);
    match tokio::time::timeout(BODY_TIMEOUT, limited.collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes().to_vec()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::bad(format!(
            "the body is too large: at most {BODY_MAX} bytes are allowed"
        ))),
        Ok(Err(_)) => Err(ApiError::bad("the body is incomplete")),
        Err(_) => Err(ApiError::bad("the body did not arrive in time")),
    }
}

/// Whether `Content-Type` is JSON, which a page of another origin cannot send without a preflight request.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|it| it.to_str().ok());
    let essence = content_type.and_then(|it| it.split(';').next());
    essence.is_some_and(|it| it.trim().eq_ignore_ascii_case("application/json"))
}

/// Bytes; no body that an endpoint takes is larger.
const BODY_MAX: usize = 64 * 1024;
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// A future that a handler returns.
pub(super) type ApiFuture<'c, T> = Pin<Box<dyn Future<Output = Result<T, ApiError>> + Send + 'c>>;

type EndpointHandler = Box<dyn Fn(&ApiCall) -> ApiFuture<'_, ApiResponse> + Send + Sync>;

/// A type's schema; its definitions are left with [`Schemas`].
type SchemaOf = fn(&mut Schemas) -> Value;

/// One method of one path.
pub(super) struct Endpoint {
    method: Method,
    /// Such as `/api/zones/{zone}`; parameters are described in [`PATH_PARAMETERS`].
    path: &'static str,
    summary: &'static str,
    pub(super) privilege: Privilege,
    /// Name, description and schema of the parameters in the query.
    query: Vec<(&'static str, &'static str, Value)>,
    /// Schema of the request's body, and whether one is required.
    body: Option<(SchemaOf, bool)>,
    /// By status.
    responses: Vec<(u16, ResponseSpec)>,
    handler: EndpointHandler,
}

/// A response as the document describes it.
struct ResponseSpec {
    description: &'static str,
    content_type: &'static str,
    schema: SchemaOf,
}

impl Endpoint {
    /// A `GET` with a JSON response.
    pub(super) fn get<T: Serialize + JsonSchema + 'static>(
        path: &'static str,
        summary: &'static str,
        handler: impl Fn(&ApiCall) -> Result<T, ApiError> + Send + Sync + 'static,
    ) -> Self {
        let handler = move |call: &ApiCall| Ok(response::json(&handler(call)?));
        Self::raw(path, summary, handler).response(200, "OK", JSON, Schemas::response::<T>)
    }

    /// A change without a body, with a JSON response.
    pub(super) fn change<T: Serialize + JsonSchema + 'static>(
        method: Method,
        path: &'static str,
        summary: &'static str,
        handler: impl Fn(&ApiCall) -> Result<T, ApiError> + Send + Sync + 'static,
    ) -> Self {
        Self::get(path, summary, handler).changes(method)
    }

    /// A change with a JSON body, with a JSON response.
    pub(super) fn change_to<
        B: DeserializeOwned + JsonSchema + 'static,
        T: Serialize + JsonSchema + 'static,
    >(
        method: Method,
        path: &'static str,
        summary: &'static str,
        handler: impl Fn(&ApiCall, B) -> Result<T, ApiError> + Send + Sync + 'static,
    ) -> Self {
        let handler = move |call: &ApiCall| Ok(response::json(&handler(call, call.json()?)?));
        Self::raw(path, summary, handler)
            .response(200, "OK", JSON, Schemas::response::<T>)
            .changes(method)
            .body(Schemas::request::<B>, true)
    }

    /// A `GET` that writes its response itself.
    pub(super) fn raw(
        path: &'static str,
        summary: &'static str,
        handler: impl Fn(&ApiCall) -> Result<ApiResponse, ApiError> + Send + Sync + 'static,
    ) -> Self {
        Self::task(path, summary, move |call| Box::pin(ready(handler(call))))
    }

    /// A `GET` that takes time.
    pub(super) fn task(
        path: &'static str,
        summary: &'static str,
        handler: impl Fn(&ApiCall) -> ApiFuture<'_, ApiResponse> + Send + Sync + 'static,
    ) -> Self {
        Self {
            method: Method::GET,
            path,
            summary,
            privilege: Privilege::Read,
            query: Vec::new(),
            body: None,
            responses: Vec::new(),
            handler: Box::new(handler),
        }
    }

    /// Makes it a change by this method.
    pub(super) fn changes(mut self, method: Method) -> Self {
        self.method = method;
        self.privilege = Privilege::Change;
        self
    }

    /// Makes it a `POST` that only reads.
    pub(super) fn reads_body(mut self) -> Self {
        self.privilege = Privilege::Read;
        self
    }

    /// Describes the body.
    pub(super) fn body(mut self, schema: SchemaOf, required: bool) -> Self {
        self.body = Some((schema, required));
        self
    }

    /// Allows the body to be absent.
    pub(super) fn optional_body(mut self) -> Self {
        self.body = self.body.map(|(schema, _)| (schema, false));
        self
    }

    /// Describes a parameter of the query.
    pub(super) fn query(
        mut self,
        name: &'static str,
        description: &'static str,
        schema: Value,
    ) -> Self {
        self.query.push((name, description, schema));
        self
    }

    /// Describes the parameter `limit` of the query.
    pub(super) fn limit(self, description: &'static str) -> Self {
        let schema = json!({ "type": "integer", "minimum": 1, "maximum": 1000 });
        self.query("limit", description, schema)
    }

    /// Describes a response.
    pub(super) fn response(
        mut self,
        status: u16,
        description: &'static str,
        content_type: &'static str,
        schema: SchemaOf,
    ) -> Self {
        let response = ResponseSpec {
            description,
            content_type,
            schema,
        };
        self.responses.push((status, response));
        self
    }

    /// Describes a plain text.
    pub(super) fn text(self, status: u16, description: &'static str) -> Self {
        self.response(status, description, "text/plain", string)
    }

    /// Describes an error.
    pub(super) fn error(mut self, status: u16, description: &'static str) -> Self {
        self.responses
            .push((status, ResponseSpec::error(description)));
        self
    }

    /// The parameters of a path that is this endpoint's.
    pub(super) fn args(&self, path: &str) -> Option<PathArgs> {
        let (mut names, mut args) = (self.path.split('/'), PathArgs::new());
        for segment in path.split('/') {
            let (name, segment) = (names.next()?, percent_decode(segment)?);
            match parameter(name) {
                Some(name) if !segment.is_empty() => args.push((name, segment)),
                None if name == segment => {}
                _ => return None,
            }
        }
        names.next().is_none().then_some(args)
    }

    /// The methods that it takes: a `GET` also takes `HEAD`.
    pub(super) fn methods(&self) -> &[Method] {
        match self.method {
            Method::GET => &[Method::GET, Method::HEAD],
            _ => std::slice::from_ref(&self.method),
        }
    }

    pub(super) async fn call(&self, call: &ApiCall) -> Result<ApiResponse, ApiError> {
        (self.handler)(call).await
    }

    /// The description of the endpoint: an operation object of OpenAPI.
    fn operation(&self, schemas: &mut Schemas) -> Value {
        let (unauthorized, forbidden) = match self.privilege {
            Privilege::Read => (
                "The token is wrong, or missing in a request from elsewhere.",
                "A request from elsewhere, and no token is configured.",
            ),
            Privilege::Change => (
                "The token is wrong or missing.",
                "No token is configured, or the request comes from a page of another origin.",
            ),
        };
        let takes_body = self.method != Method::GET;
        let implied = [
            (!self.query.is_empty(), 400, "A parameter is invalid."),
            (
                takes_body,
                400,
                "The body is not JSON, too large, or invalid.",
            ),
            (self.path.contains('{'), 404, "No such object."),
            (true, 401, unauthorized),
            (true, 403, forbidden),
        ];
        let implied = implied.into_iter().filter(|(applies, ..)| *applies);
        let implied: Vec<_> = implied
            .map(|(_, status, description)| (status, ResponseSpec::error(description)))
            .collect();
        let mut responses = Map::new();
        for (status, response) in self.responses.iter().chain(&implied) {
            let content =
                json!({ response.content_type: { "schema": (response.schema)(schemas) } });
            let spec = json!({ "description": response.description, "content": content });
            // What an endpoint says itself comes first.
            responses.entry(status.to_string()).or_insert(spec);
        }
        let mut operation = json!({ "summary": self.summary, "responses": responses });
        if self.privilege == Privilege::Change {
            operation["security"] = json!([{ "token": [] }]);
        }
        if !self.query.is_empty() {
            let query = self.query.iter();
            let query = query.map(|(name, description, schema)| {
                json!({
                    "name": name, "in": "query", "required": false, "description": description,
                    "schema": schema,
                })
            });
            operation["parameters"] = query.collect();
        }
        if let Some((schema, required)) = self.body {
            let content = json!({ JSON: { "schema": schema(schemas) } });
            operation["requestBody"] = json!({ "required": required, "content": content });
        }
        operation
    }
}

impl ResponseSpec {
    fn error(description: &'static str) -> Self {
        Self {
            description,
            content_type: JSON,
            schema: Schemas::response::<ErrorBody>,
        }
    }
}

/// The name of a parameter, where a segment of a path is one.
fn parameter(segment: &'static str) -> Option<&'static str> {
    segment.strip_prefix('{')?.strip_suffix('}')
}

/// The OpenAPI document.
pub(super) fn document(endpoints: &[Endpoint]) -> Value {
    let mut schemas = Schemas::default();
    let mut paths = Map::new();
    for endpoint in endpoints {
        let item = paths.entry(endpoint.path).or_insert_with(|| {
            let parameters: Vec<_> = path_parameters(endpoint.path).collect();
            match parameters.is_empty() {
                true => json!({}),
                false => json!({ "parameters": parameters }),
            }
        });
        item[endpoint.method.as_str().to_lowercase()] = endpoint.operation(&mut schemas);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "weir",
            "version": "1",
            "description": "The API of weir's admin listener. On the machine itself reading needs no token; reading from \
                            elsewhere and all changes need it.",
            "license": { "name": LICENSE, "identifier": LICENSE },
        },
        "servers": [{ "url": "http://127.0.0.1:9900" }],
        "security": [{}, { "token": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas.definitions(),
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

fn path_parameters(path: &'static str) -> impl Iterator<Item = Value> {
    path.split('/').filter_map(parameter).map(|name| {
        let known = PATH_PARAMETERS.iter().find(|(known, _)| *known == name);
        json!({
            "name": name, "in": "path", "required": true,
            "description": known.map(|(_, description)| description),
            "schema": { "type": "string" },
        })
    })
}

const PATH_PARAMETERS: &[(&str, &str)] = &[
    ("group", "The group's name."),
    ("key", "The key as it is shown, percent-encoded."),
    ("server", "The server's address as it is shown."),
    ("upstream", "The upstream's name."),
    ("zone", "The zone's name."),
];

/// The schema of any text.
fn string(_: &mut Schemas) -> Value {
    json!({ "type": "string" })
}

pub(super) const JSON: &str = "application/json";
const LICENSE: &str = "MIT OR Apache-2.0";

#[cfg(test)]
mod tests {

    use super::*;

    fn endpoint(path: &'static str) -> Endpoint {
        Endpoint::get(path, "", |_| Ok(()))
    }

    #[test]
    fn parameters_of_a_path_are_decoded() {
        let key = endpoint("/api/zones/{zone}/keys/{key}");
        assert_eq!(
            key.args("/api/zones/a%2Fb/keys/2001%3Adb8%3A%3A1"),
            Some(vec![("zone", "a/b".into()), ("key", "2001:db8::1".into())])
        );
        let zone = endpoint("/api/zones/{zone}");
        assert_eq!(
            zone.args("/api/zones/%5Cx00"),
            Some(vec![("zone", "\\x00".into())])
        );
        for wrong in [
            "/api/zones/%zz",
            "/api/zones/%4",
            "/api/zones/%ff",
            "/api/zones/",
            "/api/zones",
            "/api/zones/a/b",
            "api/zones/a",
            "api",
            "",
        ] {
            assert_eq!(zone.args(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_query_is_read_by_name() {
        let query = "sort=refuse&limit=5&x=a%26b+c";
        assert_eq!(query_value(query, "limit").as_deref(), Some("5"));
        assert_eq!(query_value(query, "x").as_deref(), Some("a&b c"));
        assert_eq!(query_value(query, "y"), None);
    }
}
