// Places for the boxes of a graph: rows by the longest way from the top, ordered so that few lines cross, and shifted so
// that lines are straight. Lines that pass rows get a place in each of them.
{
  const GAP = 34, BEND = 14, ROW = 42, SWEEPS = 8, SHIFTS = 10, MOST_BENDS = 20000;

  // nodes: {width, height}, edges: {from, to} (places in nodes). Sets x and y (upper left corner) of the nodes, and
  // `way` of the edges: the places between. Returns [width, height] of all.
  view.layout = function (nodes, edges) {
    const rank = ranked(nodes, edges);
    const items = nodes.map((node, id) => ({ node, rank: rank[id], width: node.width, above: [], below: [] }));
    addBends(items, edges, rank);
    const rows = [];
    for (const item of items) (rows[item.rank] ||= []).push(item);
    for (let row = 0; row < rows.length; row += 1) rows[row] ||= [];
    order(rows);
    shift(rows);
    return place(rows, edges);
  };

  // Kahn's way; where a broken file has a circle, the first node that is left goes on.
  function ranked(nodes, edges) {
    const waiting = nodes.map(() => 0), after = nodes.map(() => []), rank = nodes.map(() => 0);
    for (const { from, to } of edges) {
      if (from === to) continue;
      waiting[to] += 1;
      after[from].push(to);
    }
    const heads = waiting.map((count) => !count);
    const done = nodes.map(() => false);
    const ready = nodes.map((_, id) => id).filter((id) => !waiting[id]).reverse();
    let next = 0;
    for (let count = 0; count < nodes.length; count += 1) {
      while (!ready.length && done[next]) next += 1;
      const id = ready.length ? ready.pop() : next;
      if (done[id]) { count -= 1; continue; }
      done[id] = true;
      for (const to of after[id]) {
        if (done[to]) continue;
        rank[to] = Math.max(rank[to], rank[id] + 1);
        waiting[to] -= 1;
        if (!waiting[to]) ready.push(to);
      }
    }
    nodes.forEach((_, id) => { // what nothing leads to stands right above what it leads to
      if (heads[id] && after[id].length) rank[id] = Math.max(Math.min(...after[id].map((to) => rank[to])) - 1, 0);
    });
    return rank;
  }

  function addBends(items, edges, rank) {
    const length = edges.reduce((sum, { from, to }) => sum + Math.max(rank[to] - rank[from] - 1, 0), 0);
    for (const edge of edges) {
      let before = items[edge.from];
      const target = items[edge.to];
      edge.bends = [];
      if (rank[edge.to] <= rank[edge.from]) continue; // a line back
      for (let row = rank[edge.from] + 1; length <= MOST_BENDS && row < rank[edge.to]; row += 1) {
        const bend = { rank: row, width: BEND, above: [before], below: [], bend: true };
        before.below.push(bend);
        edge.bends.push(bend);
        items.push(bend);
        before = bend;
      }
      before.below.push(target);
      target.above.push(before);
    }
  }

  function order(rows) {
    rows.forEach((row) => row.forEach((item, at) => { item.at = at; }));
    for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
      const down = sweep % 2 === 0;
      for (let step = 0; step < rows.length; step += 1) {
        const row = rows[down ? step : rows.length - 1 - step];
        for (const item of row) {
          const near = down ? item.above : item.below;
          item.wish = near.length ? near.reduce((sum, each) => sum + each.at, 0) / near.length : item.at;
        }
        row.sort((one, other) => one.wish - other.wish || one.at - other.at);
        row.forEach((item, at) => { item.at = at - (row.length - 1) / 2; });
      }
    }
  }

  // Every item is drawn to the middle of its neighbours; rows keep their order and distances (least squares by pooling).
  function shift(rows) {
    for (const row of rows) {
      let x = 0;
      for (const item of row) {
        item.x = x + item.width / 2;
        x += item.width + GAP;
      }
      for (const item of row) item.x -= x / 2;
    }
    for (let round = 0; round < SHIFTS; round += 1) {
      const down = round % 2 === 0;
      for (let step = 0; step < rows.length; step += 1) pool(rows[down ? step : rows.length - 1 - step], round > 1 ? null : down);
    }
  }

  function pool(row, down) {
    let offset = 0;
    const blocks = [];
    row.forEach((item, at) => {
      if (at) offset += (row[at - 1].width + item.width) / 2 + GAP * (item.bend || row[at - 1].bend ? 0.5 : 1);
      item.offset = offset;
      const near = down === null ? [...item.above, ...item.below] : down ? item.above : item.below;
      const wish = near.length ? near.reduce((sum, each) => sum + each.x, 0) / near.length : item.x;
      let block = { sum: 0, weight: 0, items: [item] };
      const weight = item.bend ? 4 : near.length ? 2 : 0.2;
      block.sum = (wish - offset) * weight;
      block.weight = weight;
      while (blocks.length && blocks.at(-1).sum / blocks.at(-1).weight >= block.sum / block.weight) {
        const last = blocks.pop();
        block = { sum: last.sum + block.sum, weight: last.weight + block.weight, items: last.items.concat(block.items) };
      }
      blocks.push(block);
    });
    for (const block of blocks) for (const item of block.items) item.x = block.sum / block.weight + item.offset;
  }

  function place(rows, edges) {
    const all = rows.flat(), left = Math.min(...all.map((item) => item.x - item.width / 2), 0);
    let y = 0;
    for (const row of rows) {
      const height = Math.max(...row.map((item) => (item.node ? item.node.height : 0)), 10);
      for (const item of row) {
        item.y = y;
        item.height = height;
        if (item.node) Object.assign(item.node, { x: item.x - item.width / 2 - left, y });
      }
      y += height + ROW;
    }
    for (const edge of edges) edge.way = edge.bends.map((bend) => [bend.x - left, bend.y, bend.height]);
    return [Math.max(...all.map((item) => item.x + item.width / 2), 0) - left, Math.max(y - ROW, 0)];
  }
}
