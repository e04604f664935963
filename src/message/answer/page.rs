//! The page for a status, in three forms.

use std::borrow::Cow;
use std::sync::OnceLock;

use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;

use super::accept::PageFormat;
use super::reason;

/// Statuses a page can be kept for: all there are below 600.
const STATUSES: usize = 500;

// Leaked on purpose and bounded: each status and form at most once.
static PAGES: [[OnceLock<&'static str>; 3]; STATUSES] =
    [const { [const { OnceLock::new() }; 3] }; STATUSES];

/// The body of a page; `violated` is the zone that refused.
pub(super) fn body(status: StatusCode, form: PageFormat, violated: Option<&str>) -> Bytes {
    if let (PageFormat::Problem, Some(zone)) = (form, violated) {
        return problem(status, Some(zone)).into();
    }
    let kept = PAGES.get(usize::from(status.as_u16()).wrapping_sub(100));
    match kept {
        Some(forms) => {
            let page = forms[form as usize].get_or_init(|| Box::leak(write(status, form).into()));
            Bytes::from_static(page.as_bytes())
        }
        None => write(status, form).into(),
    }
}

/// The page for a request without the key that a zone counts by, which no waiting helps.
pub(super) fn keyless(status: StatusCode, form: PageFormat, zone: &str) -> String {
    let why = format!("The request lacks the key that the limit \"{zone}\" counts by.");
    match form {
        PageFormat::Html => html(status, &why),
        PageFormat::Problem => {
            let (title, detail) = (Value::from(reason(status)), Value::from(why));
            let status = status.as_u16();
            format!(
                r#"{{"type":"about:blank","title":{title},"status":{status},"detail":{detail}}}"#
            )
        }
        PageFormat::Text => format!("{} {}\n{why}\n", status.as_u16(), reason(status)),
    }
}

fn write(status: StatusCode, form: PageFormat) -> String {
    match form {
        PageFormat::Html => html(status, advice(status)),
        PageFormat::Problem => problem(status, None),
        PageFormat::Text => format!("{} {}\n", status.as_u16(), reason(status)),
    }
}

fn problem(status: StatusCode, violated: Option<&str>) -> String {
    let title = Value::from(reason(status));
    let status_code = status.as_u16();
    let Some(zone) = violated else {
        return format!(r#"{{"type":"about:blank","title":{title},"status":{status_code}}}"#);
    };
    let kind = if status == StatusCode::SERVICE_UNAVAILABLE {
        "temporary-reduced-capacity"
    } else {
        "quota-exceeded"
    };
    let zone = Value::from(zone);
    format!(
        r#"{{"type":"https://iana.org/assignments/http-problem-types#{kind}","title":{title},"status":{status_code},"violated-policies":[{zone}]}}"#
    )
}

fn html(status: StatusCode, advice: &str) -> String {
    let title = format!("{} {}", status.as_u16(), reason(status));
    let title = escape(&title);
    let advice = escape(advice);
    format!(
        "<!doctype html>\n\
         <html lang=\"en\">\n\
         <meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n\
         <style>body{{font:1rem/1.5 system-ui,sans-serif;max-width:32rem;margin:20vh auto;padding:0 1rem}}h1{{font-size:1.5rem}}</style>\n\
         <h1>{title}</h1>\n\
         <p>{advice}</p>\n"
    )
}

/// One sentence for a person in front of a browser.
fn advice(status: StatusCode) -> &'static str {
    match status.as_u16() {
        403 => "You are not allowed to see this.",
        404 => "There is nothing at this address.",
        413 => "What you sent is too large.",
        429 => {
            "Too many requests came from you in a short time. Please wait a moment and try again."
        }
        300..=399 => "This is found elsewhere.",
        400..=499 => "The request could not be understood or may not be answered.",
        502 => "The server behind this gateway could not be reached.",
        503 => "This service is busy at the moment. Please try again soon.",
        504 => "The server behind this gateway did not answer in time.",
        500..=599 => "Something went wrong on our side.",
        _ => "That is all.",
    }
}

fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(['&', '<', '>', '"', '\'']) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_written_once() {
        let page = |form| body(StatusCode::NOT_FOUND, form, None);
        for form in [PageFormat::Html, PageFormat::Problem, PageFormat::Text] {
            assert_eq!(page(form).as_ptr(), page(form).as_ptr());
        }
        assert_eq!(page(PageFormat::Text), "404 Not Found\n");
        assert_eq!(
            page(PageFormat::Problem),
            r#"{"type":"about:blank","title":"Not Found","status":404}"#
        );
        assert!(page(PageFormat::Html).starts_with(b"<!doctype html>"));
    }

    #[test]
    fn a_status_without_a_place_in_the_cache_has_a_page_too() {
        let status = StatusCode::from_u16(999).unwrap();
        assert_eq!(body(status, PageFormat::Text, None), "999 Unknown\n");
    }

    #[test]
    fn a_refusal_names_the_policy_in_its_problem() {
        let too_many = body(
            StatusCode::TOO_MANY_REQUESTS,
            PageFormat::Problem,
            Some("perip"),
        );
        assert_eq!(
            too_many,
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","status":429,"violated-policies":["perip"]}"#
        );
        let busy = body(
            StatusCode::SERVICE_UNAVAILABLE,
            PageFormat::Problem,
            Some("a\"b"),
        );
        let busy: Value = serde_json::from_slice(&busy).unwrap();
        assert_eq!(busy["violated-policies"][0], "a\"b");
        assert!(
            busy["type"]
                .as_str()
                .unwrap()
                .ends_with("#temporary-reduced-capacity")
        );
    }

    #[test]
    fn what_could_be_markup_is_escaped() {
        assert_eq!(escape("plain"), "plain");
        assert_eq!(
            escape("<a href=\"x\">&'"),
            "&lt;a href=&quot;x&quot;&gt;&amp;&#39;"
        );
    }
}
