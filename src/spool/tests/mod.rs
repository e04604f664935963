//! What goes in comes out, in order and once, wherever it waits.

use std::future::poll_fn;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::body::{ResponseBuffer, SpoolWriter};
use super::storage::BufferPool;
use crate::config::plan::{BufferBounds, RequestBuffering, ResponseBuffering};
use crate::message::ReplayableBody;

fn bounds(memory: u64, disk: u64) -> Arc<BufferPool> {
    BufferPool::new(BufferBounds { memory, disk })
}

fn response(path: &Path, memory: usize, disk: u64) -> ResponseBuffering {
    ResponseBuffering {
        on: true,
        memory,
        disk,
        path: path.into(),
    }
}

/// Bytes that tell where they belong.
fn numbered(from: usize, length: usize) -> Bytes {
    (from..from + length).map(|at| (at % 251) as u8).collect()
}

/// Pushes and pops at random; whether all came out as it went in.
async fn is_sound(path: &Path, seed: u64, memory: usize, disk: u64) -> bool {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut backlog = ResponseBuffer::new(&response(path, memory, disk), &bounds(1 << 20, 1 << 20));
    let (mut pushed, mut popped, mut sound) = (0, 0, true);
    for _ in 0..400 {
        let pushes = random.bool();
        for _ in 0..random.usize(1..8) {
            if pushes && poll_fn(|context| backlog.has_room(context).into()).await {
                let data = numbered(pushed, random.usize(1..40_000));
                pushed += data.len();
                backlog.push(data);
            } else if !pushes && let Some(data) = poll_fn(|context| backlog.poll_pop(context)).await
            {
                let data = data.unwrap();
                sound &= data == numbered(popped, data.len());
                popped += data.len();
            }
            sound &= backlog.len() == (pushed - popped) as u64;
            if random.u8(..) < 16 {
                tokio::task::yield_now().await;
            }
        }
    }
    while let Some(data) = poll_fn(|context| backlog.poll_pop(context)).await {
        let data = data.unwrap();
        sound &= data == numbered(popped, data.len());
        popped += data.len();
    }
    sound && popped == pushed && backlog.is_empty()
}

#[tokio::test]
async fn a_backlog_gives_what_it_was_given() {
    let directory = tempfile::tempdir().unwrap();
    for seed in 0..20 {
        assert!(is_sound(directory.path(), seed, 32 << 10, 1 << 30).await);
        assert!(is_sound(directory.path(), seed, 4096, 200_000).await);
        // Memory alone, and no file to be had.
        assert!(is_sound(directory.path(), seed, 32 << 10, 0).await);
        let missing = directory.path().join("missing");
        assert!(is_sound(&missing, seed, 4096, 1 << 30).await);
    }
}

#[tokio::test]
async fn a_file_is_used_again_from_its_beginning() {
    let directory = tempfile::tempdir().unwrap();
    let bounds = bounds(1 << 20, 100_000);
    let mut backlog = ResponseBuffer::new(&response(directory.path(), 4096, 100_000), &bounds);
    // Ten times what the disk has room for goes through it.
    for round in 0..20 {
        for _ in 0..5 {
            while !poll_fn(|context| backlog.has_room(context).into()).await {
                tokio::task::yield_now().await;
            }
            backlog.push(numbered(round, 10_000));
        }
        while let Some(data) = poll_fn(|context| backlog.poll_pop(context)).await {
            data.unwrap();
        }
    }
}

/// A body of so many pieces of 3000 bytes, as far as there is room.
async fn taken_in(
    path: &Path,
    pieces: usize,
    bounds: &Arc<BufferPool>,
) -> (Box<dyn ReplayableBody>, usize) {
    let plan = RequestBuffering {
        memory: 16 << 10,
        path: path.into(),
    };
    let mut writer = SpoolWriter::new(&plan, bounds);
    let mut length = 0;
    for _ in 0..pieces {
        if !poll_fn(|context| writer.poll_room(context)).await {
            break;
        }
        writer.push(numbered(length, 3000));
        length += 3000;
    }
    poll_fn(|context| writer.poll_written(context)).await;
    (Box::new(writer.finish()), length)
}

async fn read(mut body: Box<dyn ReplayableBody>) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(piece) = poll_fn(|context| body.poll_next(context)).await {
        all.extend_from_slice(&piece.unwrap());
    }
    all
}

#[tokio::test]
async fn a_body_can_be_read_more_than_once() {
    let directory = tempfile::tempdir().unwrap();
    let bounds = bounds(1 << 20, 1 << 30);
    for pieces in [0, 1, 5, 6, 100, 1000] {
        let (body, length) = taken_in(directory.path(), pieces, &bounds).await;
        assert_eq!((length, body.left()), (3000 * pieces, length as u64));
        let again = body.again();
        assert!(read(body).await == numbered(0, length));
        assert!(read(again).await == numbered(0, length));
    }
}

#[tokio::test]
async fn what_there_was_room_for_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    for (path, disk) in [(directory.path(), 50_000), (&missing, 1 << 30)] {
        let (body, length) = taken_in(path, 100, &bounds(1 << 20, disk)).await;
        assert!((16_000..300_000).contains(&length), "{length}");
        assert!(read(body).await == numbered(0, length));
    }
}
