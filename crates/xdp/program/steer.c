// The XDP program: claimed packets are redirected to the AF_XDP socket of their queue or dropped, all others are passed.
//
// It reads the packed image of the outer headers exactly as crates/packet/src/parse.rs does, and looks the image up in
// decision trees that the process writes while the program runs (crates/xdp/src/tree.rs describes their form). Where a tree
// leads beyond its bounds the packet is redirected: more than is claimed may be redirected, never less. A packet is dropped
// here if the rule of the lowest precedence that it meets names a slot, where it is counted (crates/xdp/src/claims.rs).
//
// It needs no headers, so that its object depends on the compiler alone: the types below are those of linux/bpf.h.
// Build it with program/build, which also writes the object that the crate contains.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct xdp_md {
	u32 data;
	u32 data_end;
	u32 data_meta;
	u32 ingress_ifindex;
	u32 rx_queue_index;
	u32 egress_ifindex;
};

struct bpf_map_def {
	u32 type;
	u32 key_size;
	u32 value_size;
	u32 max_entries;
	u32 map_flags;
	u32 id;
	u32 pinning;
};

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const redirect_map)(void *map, u64 key, u64 flags) = (void *)51;
static long (*const adjust_meta)(void *context, int delta) = (void *)54;
static u32 (*const processor)(void) = (void *)8;
// Since Linux 5.18. The difference of the pointers is refused to programs of processes without CAP_PERFMON.
static u64 (*const frame_bytes)(void *context) = (void *)188;

enum { XDP_DROP = 1, XDP_PASS = 2, XDP_REDIRECT = 4 };
enum { MAP_ARRAY = 2, MAP_PERCPU_ARRAY = 6, MAP_XSKMAP = 17 };
enum { F_MMAPABLE = 1 << 10 };
enum { RUN_SLOT, TOTAL_SLOT };

// The packed image of one packet's headers (crates/packet/src/slots.rs).
#define WORDS 8
// The first words: protocol, ports, and IPv4 addresses or the upper halves of IPv6 addresses.
#define NEAR_WORDS 3
#define HAS_IPV4 (1ULL << 63)
#define HAS_IPV6 (1ULL << 62)
#define HAS_TCP (1ULL << 61)
#define HAS_UDP (1ULL << 60)
#define HAS_C_TAG (1ULL << 63)

// The trees; those of claims that may drop come first. The search of one of these ends when no rule in it can come first.
#define ROOTS 8
#define DROP_ROOTS 4
#define BLOCK_ENTRIES 16
#define LIST_ENTRIES 15
#define MAX_STEPS 37

// A reference: its kind in the upper two bits.
#define KIND(at) ((at) >> 30)
#define PLACE(at) ((at) & 0x3fffff)
enum { CONSTANT, RULE, LIST, INNER };
#define NOTHING 0
#define LIST_COUNT(at) ((at) >> 22 & 15)
#define LIST_GOES_ON(at) ((at) >> 26 & 1)
#define INNER_WORD(at) ((at) >> 26 & 7)
#define INNER_SHIFT(at) (((at) >> 22 & 15) * 4)

struct block {
	u32 entries[BLOCK_ENTRIES];
};

// The bits that a word of the image must have, and those that are compared.
struct condition {
	u64 value;
	u64 mask;
};

// Three cache lines, of which most comparisons need the first.
struct rule {
	struct condition near[NEAR_WORDS];
	// What becomes of the packets. The process changes it at any time.
	u64 effect;
	// Whether the other words have a condition.
	u64 has_far;
	struct condition far[WORDS - NEAR_WORDS];
	u64 unused[6];
};

// An effect: the precedence in the upper half, and the slot of what is dropped; slot 0: it is redirected. The lowest precedence
// decides, and of one precedence a claim that redirects.
#define PRECEDENCE(effect) ((effect) >> 32)
#define SLOT(effect) ((effect) & 0xffffffff)
#define NO_EFFECT (~0ULL)

// The packets that one processor has dropped for one purpose. Slot 0 of a processor counts none: its first word is odd
// while the program is about to drop a packet there, and its second is not 0 while nothing is to be dropped. Slot 1 counts
// all, before the others.
struct drops {
	u64 packets;
	u64 bytes;
};

// What a processor needs for a packet, and what it has counted.
struct scratch {
	u64 passed;
	u64 redirected;
	u64 beyond;
	u64 unserved;
	// The best effect among the rules that the packet has met, and the place of its rule.
	u64 best;
	u64 best_rule;
	// The target of an exchange that serves as a barrier; its value has no meaning.
	u64 exchanged;
	u64 image[WORDS];
};

// The frames that the process gives back to the host in generic mode. It writes `key` once and `given` before each.
struct left {
	u64 key;
	u64 given;
	u64 passed;
};

// What stands right before a frame that is given back, in the headroom of its buffer.
struct mark {
	u64 key;
	u64 number;
};

struct roots {
	u32 entries[ROOTS];
	// A lower bound of the precedences of each tree.
	u32 first[ROOTS];
	// The number of changes, incremented before each.
	u32 changes;
};

struct bpf_map_def SECTION("maps") ROOT_MAP = {MAP_ARRAY, 4, sizeof(struct roots), 1, F_MMAPABLE, 0, 0};
struct bpf_map_def SECTION("maps") BLOCK_MAP = {MAP_ARRAY, 4, sizeof(struct block), 1, F_MMAPABLE, 0, 0};
struct bpf_map_def SECTION("maps") RULE_MAP = {MAP_ARRAY, 4, sizeof(struct rule), 1, F_MMAPABLE, 0, 0};
struct bpf_map_def SECTION("maps") DROP_MAP = {MAP_ARRAY, 4, sizeof(struct drops), 1, F_MMAPABLE, 0, 0};
struct bpf_map_def SECTION("maps") SCRATCH_MAP = {MAP_PERCPU_ARRAY, 4, sizeof(struct scratch), 1, 0, 0, 0};
struct bpf_map_def SECTION("maps") LEFT_MAP = {MAP_ARRAY, 4, sizeof(struct left), 1, F_MMAPABLE, 0, 0};
struct bpf_map_def SECTION("maps") SOCKET_MAP = {MAP_XSKMAP, 4, 4, 1, 0, 0, 0};

// The action for claimed packets of a queue without a socket, set when the program is loaded.
const volatile u32 WITHOUT_SOCKET = XDP_PASS;
// Whether the program runs in generic mode, set when it is loaded.
const volatile u32 IS_GENERIC = 0;
// The slots of each processor, 0 if the kernel lacks what dropping needs; set when the program is loaded.
const volatile u32 DROP_SLOTS = 0;
// The longest frame that is dropped here, in bytes; set when the program is loaded.
const volatile u32 MAX_DROP_BYTES = 0;

// Whether a search orders its loads, because the processors may not; set when the program is loaded.
const volatile u32 ORDERS_LOADS = 0;

INLINE u16 number16(const u8 *at) { return __builtin_bswap16(*(const u16 *)at); }
INLINE u32 number32(const u8 *at) { return __builtin_bswap32(*(const u32 *)at); }
INLINE u64 number64(const u8 *at) { return __builtin_bswap64(*(const u64 *)at); }

INLINE int is_vlan_tag(u16 ether_type)
{
	return ether_type == 0x8100 || ether_type == 0x88a8 || ether_type == 0x9100;
}

// Ports of a transport header at `at` of which `bytes` bytes have to be there. `end` is the end of the frame; `left` is
// the length of the payload by the IP header, at least `bytes` if it is not known.
INLINE void read_transport(u64 *image, const u8 *at, const u8 *end, u8 protocol, u32 left)
{
	if (protocol == 6) {
		if (left < 20 || at + 20 > end)
			return;
		image[0] |= HAS_TCP | number32(at);
	} else if (protocol == 17) {
		if (left < 8 || at + 8 > end)
			return;
		image[0] |= HAS_UDP | number32(at);
	}
}

INLINE void read_ipv4(u64 *image, const u8 *at, const u8 *end)
{
	if (at + 20 > end || at[0] >> 4 != 4)
		return;
	u32 header_bytes = (at[0] & 15) * 4;
	u32 total_bytes = number16(at + 2);
	if (header_bytes < 20 || (total_bytes != 0 && total_bytes < header_bytes))
		return;
	u16 fragment = number16(at + 6);
	u8 protocol = at[9];
	image[0] = HAS_IPV4 | (u64)(fragment >> 13) << 56 | (u64)at[8] << 48 | (u64)protocol << 40 | (u64)at[1] << 32;
	image[1] = (u64)number32(at + 16) << 32;
	image[2] = (u64)number32(at + 12) << 32;
	if ((fragment & 0x1fff) == 0)
		read_transport(image, at + header_bytes, end, protocol, total_bytes == 0 ? 20 : total_bytes - header_bytes);
}

INLINE void read_ipv6(u64 *image, const u8 *at, const u8 *end)
{
	if (at + 40 > end || at[0] >> 4 != 6)
		return;
	u32 first = number32(at);
	u32 payload_bytes = number16(at + 4);
	u8 protocol = at[6];
	image[0] = HAS_IPV6 | (u64)at[7] << 48 | (u64)protocol << 40 | (u64)(u8)(first >> 20) << 32;
	image[1] = number64(at + 24);
	image[3] = number64(at + 32);
	image[2] = number64(at + 8);
	image[4] = number64(at + 16);
	image[7] |= first & 0xfffff;
	read_transport(image, at + 40, end, protocol, payload_bytes == 0 ? 20 : payload_bytes);
}

INLINE void read_image(u64 *image, const u8 *at, const u8 *end)
{
	if (at + 14 > end)
		return;
	const u8 *next = at + 14;
	u16 type = number16(at + 12);
	u16 tci = 0;
	if (is_vlan_tag(type) && next + 4 <= end) {
		if (type == 0x8100) {
			tci = number16(next);
			image[7] = HAS_C_TAG;
		}
		type = number16(next + 2);
		next += 4;
		if (is_vlan_tag(type) && next + 4 <= end) {
			type = number16(next + 2);
			next += 4;
		}
	}
	image[5] = (number64(at) & ~0xffffULL) | type;
	image[6] = (u64)number32(at + 6) << 32 | (u64)number16(at + 10) << 16 | tci;
	if (type == 0x0800)
		read_ipv4(image, next, end);
	else if (type == 0x86dd)
		read_ipv6(image, next, end);
}

// The result of a search. With `drops` it stores the best effect in `scratch`, and returns UNCLAIMED or BEYOND.
enum { UNCLAIMED, CLAIMED, BEYOND, CHANGED };
// The most searches for a packet while claims change.
#define SEARCHES 8

// Whether the packet is to be redirected because of this rule.
INLINE int meet(struct scratch *scratch, u32 place, u32 drops)
{
	const u64 *image = scratch->image;
	const struct rule *rule = map_lookup(&RULE_MAP, &place);
	if (!rule)
		return 1;
#pragma unroll
	for (int word = 0; word < NEAR_WORDS; word++)
		if ((image[word] & rule->near[word].mask) != rule->near[word].value)
			return 0;
	if (rule->has_far) {
#pragma unroll
		for (int word = 0; word < WORDS - NEAR_WORDS; word++)
			if ((image[NEAR_WORDS + word] & rule->far[word].mask) != rule->far[word].value)
				return 0;
	}
	u64 effect = *(const volatile u64 *)&rule->effect, best = scratch->best;
	if (!drops)
		return PRECEDENCE(effect) <= PRECEDENCE(best);
	if (effect < best) {
		scratch->best = effect;
		scratch->best_rule = place;
	}
	return 0;
}

// Whether no rule of a tree of claims that may drop comes before the best one.
INLINE int is_decided(struct scratch *scratch, u32 first)
{
	return scratch->best != NO_EFFECT && PRECEDENCE(scratch->best) <= first;
}

// It is a function of its own so that the verifier examines it once and not in every step of every tree.
__attribute__((noinline)) u32 search_list(u32 place, u32 count, u32 drops, u32 first)
{
	u32 zero = 0;
	struct scratch *scratch = map_lookup(&SCRATCH_MAP, &zero);
	const struct block *block = map_lookup(&BLOCK_MAP, &place);
	if (!scratch || !block)
		return BEYOND;
	for (u32 entry = 0; entry < LIST_ENTRIES; entry++) {
		if (entry >= count)
			break;
		if (meet(scratch, *(const volatile u32 *)&block->entries[entry], drops))
			return CLAIMED;
		if (drops && is_decided(scratch, first))
			break;
	}
	return UNCLAIMED;
}

// Every entry is read once: it is replaced by one store of 32 bits while this runs, and leads to what was written
// before it.
INLINE u32 search(struct scratch *scratch, u32 at, u32 drops, u32 first)
{
	const u64 *image = scratch->image;
	for (int step = 0; step < MAX_STEPS; step++) {
		u32 kind = KIND(at);
		if (kind == CONSTANT)
			return at == NOTHING ? UNCLAIMED : BEYOND;
		u32 place = PLACE(at);
		if (kind == RULE)
			return meet(scratch, place, drops) ? CLAIMED : UNCLAIMED;
		const struct block *block = map_lookup(&BLOCK_MAP, &place);
		if (!block)
			return BEYOND;
		if (kind == INNER) {
			u32 nibble = image[INNER_WORD(at)] >> INNER_SHIFT(at) & 15;
			at = *(const volatile u32 *)&block->entries[nibble];
			continue;
		}
		u32 found = search_list(place, LIST_COUNT(at), drops, first);
		if (found != UNCLAIMED || (drops && is_decided(scratch, first)))
			return found;
		at = LIST_GOES_ON(at) ? *(const volatile u32 *)&block->entries[LIST_ENTRIES] : NOTHING;
	}
	return BEYOND;
}

// Loads before this come before those after it: an exchange is a full barrier.
INLINE void order_loads(struct scratch *scratch)
{
	if (ORDERS_LOADS)
		__sync_lock_test_and_set(&scratch->exchanged, 0);
}

// Searches all trees. If claims have changed meanwhile, one that came in the place of another may be in a tree that was
// searched before that: then the result is used only if the packet is to be redirected.
__attribute__((noinline)) u32 search_all(void)
{
	u32 zero = 0;
	struct scratch *scratch = map_lookup(&SCRATCH_MAP, &zero);
	const struct roots *roots = map_lookup(&ROOT_MAP, &zero);
	if (!scratch || !roots)
		return BEYOND;
	scratch->best = NO_EFFECT;
	u32 changes = *(const volatile u32 *)&roots->changes;
	order_loads(scratch);
	for (u32 tree = 0; tree < ROOTS; tree++) {
		u32 drops = tree < DROP_ROOTS, first = *(const volatile u32 *)&roots->first[tree];
		// A rule that redirects does so at the precedence of the best one too.
		if (drops ? is_decided(scratch, first) : first > PRECEDENCE(scratch->best))
			continue;
		u32 found = search(scratch, *(const volatile u32 *)&roots->entries[tree], drops, first);
		if (found != UNCLAIMED)
			return found;
	}
	order_loads(scratch);
	return changes == *(const volatile u32 *)&roots->changes ? UNCLAIMED : CHANGED;
}

// Drops a packet if its effect names a slot, and counts it there. Both exchanges are full barriers: a process that has taken
// the effect back, and then found the first word even or changed, has all counts of packets that were dropped by it.
INLINE int is_dropped(struct xdp_md *context, u32 place, u64 effect)
{
	if (!DROP_SLOTS || !SLOT(effect))
		return 0;
	const struct rule *rule = map_lookup(&RULE_MAP, &place);
	if (!rule)
		return 0;
	u64 bytes = frame_bytes(context);
	u32 first = processor() * DROP_SLOTS + RUN_SLOT;
	u32 second = first + TOTAL_SLOT;
	struct drops *run = map_lookup(&DROP_MAP, &first);
	struct drops *total = map_lookup(&DROP_MAP, &second);
	if (!run || !total || *(const volatile u64 *)&run->bytes || bytes > MAX_DROP_BYTES)
		return 0;
	u64 runs = run->packets;
	__sync_lock_test_and_set(&run->packets, runs + 1);
	u32 counted = first + SLOT(effect);
	struct drops *drops = map_lookup(&DROP_MAP, &counted);
	int dropped = 0;
	if (*(const volatile u64 *)&rule->effect == effect && drops && !*(const volatile u64 *)&run->bytes) {
		dropped = 1;
		total->packets++;
		total->bytes += bytes;
		drops->packets++;
		drops->bytes += bytes;
	}
	__sync_lock_test_and_set(&run->packets, runs + 2);
	return dropped;
}

// Whether the process gives this frame back to the host: then it is not looked up again. In generic mode the kernel runs
// `steer` over the frames that `leave` passed. A frame is known by its mark: a key that nobody else knows, and the number
// of the frame. Each number passes once and no smaller one after it, and the mark is removed here. Only the last mark,
// if the host dropped its frame on the way here, can stay in a buffer that is used again and let one other frame pass.
INLINE int is_given_back(struct xdp_md *context)
{
	u32 zero = 0;
	struct left *left = map_lookup(&LEFT_MAP, &zero);
	if (!IS_GENERIC || !left || adjust_meta(context, -(int)sizeof(struct mark)))
		return 0;
	struct mark *mark = (struct mark *)(u64)context->data_meta;
	int passes = 0;
	if ((const u8 *)(mark + 1) <= (const u8 *)(u64)context->data) {
		u64 number = mark->number, passed = *(volatile u64 *)&left->passed;
		if (mark->key == left->key) {
			mark->key = 0;
			if (number > passed && number <= *(volatile u64 *)&left->given)
				passes = __sync_val_compare_and_swap(&left->passed, passed, number) == passed;
		}
	}
	adjust_meta(context, sizeof(struct mark));
	return passes;
}

SECTION("xdp") int steer(struct xdp_md *context)
{
	if (is_given_back(context))
		return XDP_PASS;
	const u8 *frame = (const u8 *)(u64)context->data;
	const u8 *end = (const u8 *)(u64)context->data_end;
	u32 zero = 0;
	struct scratch *scratch = map_lookup(&SCRATCH_MAP, &zero);
	if (!scratch)
		return redirect_map(&SOCKET_MAP, context->rx_queue_index, XDP_PASS);

	u64 *image = scratch->image;
#pragma unroll
	for (int word = 0; word < WORDS; word++)
		image[word] = 0;
	read_image(image, frame, end);

	u32 found = CHANGED;
	for (int time = 0; time < SEARCHES && found == CHANGED; time++)
		found = search_all();
	if (found == UNCLAIMED && scratch->best == NO_EFFECT) {
		scratch->passed++;
		return XDP_PASS;
	}
	if (found == BEYOND || found == CHANGED)
		scratch->beyond++;
	else if (found == UNCLAIMED && is_dropped(context, scratch->best_rule, scratch->best))
		return XDP_DROP;
	int action = redirect_map(&SOCKET_MAP, context->rx_queue_index, WITHOUT_SOCKET);
	if (action == XDP_REDIRECT)
		scratch->redirected++;
	else
		scratch->unserved++;
	return action;
}

// Run over a frame by BPF_PROG_TEST_RUN with BPF_F_TEST_XDP_LIVE_FRAMES, it makes the host receive the frame.
SECTION("xdp") int leave(struct xdp_md *context)
{
	u32 zero = 0;
	struct left *left = map_lookup(&LEFT_MAP, &zero);
	if (!IS_GENERIC || !left || adjust_meta(context, -(int)sizeof(struct mark)))
		return XDP_PASS;
	struct mark *mark = (struct mark *)(u64)context->data_meta;
	if ((const u8 *)(mark + 1) <= (const u8 *)(u64)context->data) {
		mark->key = left->key;
		mark->number = left->given;
	}
	adjust_meta(context, sizeof(struct mark));
	return XDP_PASS;
}

// No helper that is used here asks for the GPL.
char LICENSE[] SECTION("license") = "MIT OR Apache-2.0";
