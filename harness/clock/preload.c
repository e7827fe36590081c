/*
 * Moves the wall clock of one process tree by an offset another process may change at any moment.
 *
 * The offset, a signed number of nanoseconds, is the first eight bytes of the file FENCEPOST_CLOCK_FILE names,
 * mapped once at load. Reading it is one aligned load: no lock, no allocation, nothing a signal handler could
 * find half done. (libfaketime's ordinary build takes a lock here; a SIGALRM inside it deadlocks the backend.)
 *
 * Only clocks that tell the time of day move. The monotonic ones measure durations that the kernel waits for in
 * real time (poll, epoll_wait, futex): a process that saw them jump would cut its own waits short, and no lease
 * is decided by them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#if __SIZEOF_LONG__ < 8
#error "needs a 64-bit system: elsewhere the offset could be read half written"
#endif

#define NS_PER_S 1000000000L

static const int64_t no_offset = 0;
static const int64_t *offset_ns = &no_offset; /* until the constructor ran: loaders may ask for the time before */
static int (*real_clock_gettime)(clockid_t, struct timespec *);

static void refuse(const char *reason)
{
	/* A server that runs on without its clock would turn every expiry into a wrong result, so it must not run. */
	if (write(2, "fencepost clock: ", 17) < 0 || write(2, reason, strlen(reason)) < 0)
		_exit(97);
	_exit(97);
}

__attribute__((constructor)) static void map_offset(void)
{
	const char *path = getenv("FENCEPOST_CLOCK_FILE");
	if (path == NULL)
		refuse("FENCEPOST_CLOCK_FILE is not set\n");
	int file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0)
		refuse("cannot open the file FENCEPOST_CLOCK_FILE names\n");
	if (lseek(file, 0, SEEK_END) < (off_t)sizeof(int64_t)) /* a shorter one would be SIGBUS at the first read */
		refuse("the file FENCEPOST_CLOCK_FILE names is shorter than eight bytes\n");
	void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
	if (mapped == MAP_FAILED)
		refuse("cannot map the file FENCEPOST_CLOCK_FILE names\n");
	close(file);
	/* libc's own function answers from the vDSO; a plain system call would cost several times as much. */
	real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
	offset_ns = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *at)
{
	int failed = real_clock_gettime ? real_clock_gettime(clock, at) : (int)syscall(SYS_clock_gettime, clock, at);
	if (failed || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE && clock != CLOCK_TAI))
		return failed;
	int64_t offset = __atomic_load_n(offset_ns, __ATOMIC_RELAXED);
	at->tv_sec += offset / NS_PER_S;
	at->tv_nsec += offset % NS_PER_S;
	if (at->tv_nsec >= NS_PER_S) {
		at->tv_nsec -= NS_PER_S;
		at->tv_sec += 1;
	} else if (at->tv_nsec < 0) {
		at->tv_nsec += NS_PER_S;
		at->tv_sec -= 1;
	}
	return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
	struct timespec now;
	(void)zone; /* obsolete; Linux answers zeros */
	clock_gettime(CLOCK_REALTIME, &now);
	at->tv_sec = now.tv_sec;
	at->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *at)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (at != NULL)
		*at = now.tv_sec;
	return now.tv_sec;
}
