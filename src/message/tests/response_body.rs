//! How an answer ends, in every way it can.

use http_body_util::BodyExt;
use parking_lot::Mutex;

use super::*;

/// What an upstream sends before its connection breaks.
#[derive(Debug)]
struct Download(Option<Bytes>);

impl http_body::Body for Download {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        Poll::Ready(Some(self.0.take().map(Frame::data).ok_or("gone")))
    }
}

/// Remembers what it was told.
#[derive(Debug)]
struct Witness {
    sent: usize,
    heard: Arc<Mutex<Vec<(usize, ResponseEnd)>>>,
}

impl ResponseGuard for Witness {
    fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
    }

    fn finish(self: Box<Self>, ending: ResponseEnd) {
        self.heard.lock().push((self.sent, ending));
    }
}

struct Scene {
    connection: Arc<ClientConnection>,
    heard: Arc<Mutex<Vec<(usize, ResponseEnd)>>>,
}

impl Scene {
    fn new() -> Self {
        Self {
            connection: Arc::new(crate::message::testing::connection()),
            heard: Arc::default(),
        }
    }

    fn watch(&self, mut body: ResponseBody<Download>) -> ResponseBody<Download> {
        let guard = Witness {
            sent: 0,
            heard: Arc::clone(&self.heard),
        };
        body.set_guard(Box::new(guard), Arc::clone(&self.connection));
        body
    }

    fn heard(&self) -> Vec<(usize, ResponseEnd)> {
        self.heard.lock().clone()
    }
}

#[tokio::test]
async fn an_answer_is_over_when_its_bytes_have_left_and_not_before() {
    let scene = Scene::new();
    let mut body = scene.watch(ResponseBody::whole(Bytes::from_static(b"hello")));
    let frame = body.frame().await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "hello");
    // hyper knows it to be finished and does not ask again.
    drop(body);
    assert_eq!(scene.heard(), []);
    scene.connection.state.flushed();
    assert_eq!(scene.heard(), [(5, ResponseEnd::Complete)]);
    scene.connection.state.closed();
    assert_eq!(scene.heard().len(), 1);
}

#[tokio::test]
async fn an_answer_whose_bytes_never_left_was_aborted() {
    let scene = Scene::new();
    let body = scene.watch(ResponseBody::whole(Bytes::from_static(b"hello")));
    body.collect().await.unwrap();
    scene.connection.state.closed();
    assert_eq!(scene.heard(), [(5, ResponseEnd::Aborted)]);
}

#[test]
fn an_untaken_response_was_aborted_but_an_empty_one_is_complete() {
    let scene = Scene::new();
    drop(scene.watch(ResponseBody::whole(Bytes::from_static(b"hello"))));
    assert_eq!(scene.heard(), [(0, ResponseEnd::Aborted)]);

    let scene = Scene::new();
    drop(scene.watch(ResponseBody::whole(Bytes::new())));
    scene.connection.state.flushed();
    assert_eq!(scene.heard(), [(0, ResponseEnd::Complete)]);
}

#[tokio::test]
async fn a_download_that_breaks_is_aborted_at_once() {
    let scene = Scene::new();
    let part = Bytes::from_static(b"par");
    let mut body = scene.watch(ResponseBody::upstream(Download(Some(part))));
    assert!(body.frame().await.unwrap().is_ok());
    assert!(body.frame().await.unwrap().is_err());
    assert_eq!(scene.heard(), [(3, ResponseEnd::Aborted)]);
    drop(body);
    assert_eq!(scene.heard().len(), 1);
}

#[tokio::test]
async fn pipelined_answers_end_in_their_order() {
    let scene = Scene::new();
    for text in ["a", "bb"] {
        let body = scene.watch(ResponseBody::whole(Bytes::from_static(text.as_bytes())));
        body.collect().await.unwrap();
    }
    scene.connection.state.flushed();
    assert_eq!(
        scene.heard(),
        [(1, ResponseEnd::Complete), (2, ResponseEnd::Complete)]
    );
}
